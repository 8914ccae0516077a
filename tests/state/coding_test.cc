#include "spillway/state/coding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "files.h"
#include "spillway/kernels/narrow_floats.h"
#include "spillway/kernels/packed.h"

namespace spillway::state {
namespace {

struct Entry {
  std::string name, dtype, shape, bytes;
};

/// A checkpoint of these tensors beside a config.json with these settings.
void put_coded(const TempDir& place, const std::string& settings, const std::vector<Entry>& entries) {
  std::string json = "{", data;
  for (const auto& entry : entries) {
    const auto begin = data.size();
    data += entry.bytes;
    json += text(json.size() > 1 ? "," : "", "\"", entry.name, "\":{\"dtype\":\"", entry.dtype, "\",\"shape\":[",
                 entry.shape, "],\"data_offsets\":[", begin, ",", data.size(), "]}");
  }
  put(place / "model.safetensors", safetensors(json + "}", data));
  put(place / "config.json", text("{\"quantization_config\":", settings, "}"));
}

std::vector<float> read_values(const SafetensorsReader& reader, const std::string& name, std::uint64_t first,
                               std::uint64_t count) {
  std::vector<float> out(count);
  reader.read_fp32(*reader.find(name), first, count, out.data());
  return out;
}

/// Every span of a weight equals the same span of `expected`.
void expect_values(const SafetensorsReader& reader, const std::string& name, const std::vector<float>& expected) {
  ASSERT_NE(reader.find(name), nullptr);
  ASSERT_EQ(reader.find(name)->elements, expected.size());
  ASSERT_EQ(reader.find(name)->dtype, "F32");
  EXPECT_TRUE(reader.is_decoded(*reader.find(name)));
  std::mt19937_64 random(3);
  for (int round = 0; round < 100; ++round) {
    const auto first = round == 0 ? 0 : random() % expected.size();
    const auto count = round == 0 ? expected.size() : random() % (expected.size() - first) + 1;
    const auto at = expected.begin() + static_cast<std::ptrdiff_t>(first);
    ASSERT_EQ(read_values(reader, name, first, count), std::vector<float>(at, at + static_cast<std::ptrdiff_t>(count)));
  }
}

constexpr const char* kOf4Bits =
    R"({"quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_quant_type":"nf4","_load_in_8bit":false})";

TEST(NarrowFloats, AreThoseOfTheStandard) {
  EXPECT_EQ(kernels::widen_e4m3(0x7E), 448);
  EXPECT_EQ(kernels::widen_e4m3(0x01), 0x1p-9F);
  EXPECT_EQ(kernels::widen_e4m3(0x08), 0x1p-6F);
  EXPECT_EQ(kernels::widen_e4m3(0xB8), -1);
  EXPECT_TRUE(std::signbit(kernels::widen_e4m3(0x80)));
  EXPECT_TRUE(std::isnan(kernels::widen_e4m3(0x7F)) && std::isnan(kernels::widen_e4m3(0xFF)));
  EXPECT_EQ(kernels::widen_e8m0(0), 0x1p-127F);
  EXPECT_EQ(kernels::widen_e8m0(130), 8);
  EXPECT_TRUE(std::isnan(kernels::widen_e8m0(255)));
  EXPECT_EQ(kernels::widen_e2m1(7), 6);
  EXPECT_EQ(kernels::widen_e2m1(9), -0.5F);
}

TEST(Coding, Nf4IsDecodedAsTheEnginePacksIt) {
  const std::size_t n = 33 * 50;
  std::vector<float> values(n);
  std::mt19937_64 random(5);
  for (auto& value : values) value = std::normal_distribution<float>(0, 0.02F)(random);
  std::vector<std::uint8_t> codes((n + 1) / 2);
  std::vector<float> scales((n + 63) / 64);
  kernels::pack_nf4(values.data(), n, codes.data(), scales.data());
  kernels::unpack_nf4(codes.data(), scales.data(), values.data(), n);
  const std::string state = R"({"quant_type":"nf4","blocksize":64,"dtype":"bfloat16","shape":[33,50]})";
  const TempDir place;
  put_coded(place, kOf4Bits,
            {{"a.weight", "U8", text(codes.size(), ",1"), raw(codes)},
             {"a.weight.absmax", "F32", text(scales.size()), raw(scales)},
             {"a.weight.quant_map", "F32", "16", std::string(64, '\0')},
             {"a.weight.quant_state.bitsandbytes__nf4", "U8", text(state.size()), state},
             {"b.weight", "F32", "2", raw(std::vector<float>{1, 2})}});
  const SafetensorsReader reader(place.path());
  EXPECT_EQ(reader.tensors().size(), 2U);
  EXPECT_FALSE(reader.is_decoded(*reader.find("b.weight")));
  EXPECT_EQ(reader.find("a.weight")->shape, (std::vector<std::int64_t>{33, 50}));
  expect_values(reader, "a.weight", values);
}

TEST(Coding, Fp8HasAScaleForEachBlock) {
  constexpr int kRows = 5, kColumns = 7;
  std::vector<std::uint8_t> codes(kRows * kColumns);
  std::vector<float> scales{1, 2, 3, 4, 5, 6, 7, 8, 9}, expected(codes.size());  // 3 x 3 blocks of 2 x 3
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      const int at = row * kColumns + column;
      codes[at] = static_cast<std::uint8_t>(at * 3);
      expected[at] = kernels::widen_e4m3(codes[at]) * scales[row / 2 * 3 + column / 3];
    }
  }
  const TempDir place;
  put_coded(place, R"({"quant_method":"fp8","weight_block_size":[2,3]})",
            {{"a.weight", "F8_E4M3", "5,7", raw(codes)}, {"a.weight_scale_inv", "F32", "3,3", raw(scales)}});
  expect_values(SafetensorsReader(place.path()), "a.weight", expected);
}

TEST(Coding, Mxfp4ExpertsAreTransposed) {
  constexpr std::size_t kExperts = 2, kOut = 3, kGroups = 2, kIn = kGroups * 32;
  std::vector<std::uint8_t> codes(kExperts * kOut * kGroups * 16), scales(kExperts * kOut * kGroups);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 37);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(120 + i);
  std::vector<float> expected(kExperts * kIn * kOut);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto expert = i / (kIn * kOut), in = i / kOut % kIn, row = expert * kOut + i % kOut;
    const unsigned pair = codes[(row * kIn + in) / 2], code = in % 2 == 0 ? pair & 15U : pair >> 4U;
    expected[i] =
        kernels::widen_e2m1(static_cast<std::uint8_t>(code)) * kernels::widen_e8m0(scales[row * kGroups + in / 32]);
  }
  const TempDir place;
  put_coded(place, R"({"quant_method":"mxfp4"})",
            {{"a.down_proj_blocks", "U8", "2,3,2,16", raw(codes)}, {"a.down_proj_scales", "U8", "2,3,2", raw(scales)}});
  expect_values(SafetensorsReader(place.path()), "a.down_proj", expected);
}

TEST(Coding, CheckpointWithoutSettingsIsReadAsItIs) {
  const TempDir place;
  put_coded(place, "{}", {{"a.weight", "F8_E4M3", "1,1", "x"}, {"a.weight_scale_inv", "F32", "1,1", "1234"}});
  const SafetensorsReader reader(place.path());
  EXPECT_EQ(reader.tensors().size(), 2U);
  EXPECT_EQ(reader.find("a.weight")->dtype, "F8_E4M3");
  const SafetensorsReader alone(place / "model.safetensors");
  EXPECT_EQ(alone.tensors().size(), 2U);
}

TEST(Coding, MethodThatIsNotReadIsNamed) {
  for (const auto& [settings, name] : std::vector<std::pair<std::string, std::string>>{
           {R"({"quant_method":"gptq"})", "(gptq)"},
           {R"({"load_in_8bit":true})", "(bitsandbytes, 8 bits)"},
           {R"({"quant_method":"fp8","weight_block_size":[0]})", "weight_block_size"},
           {"[]", "a format without a name"}}) {
    expect_error(ErrorCode::bad_input, {"here.json: the weights are quantised", name, "unquantised release"},
                 [&] { (void)parse_coding(settings, "here.json"); });
  }
  EXPECT_EQ(name_of(parse_coding(kOf4Bits, "")), "NF4 of bitsandbytes");
  EXPECT_EQ(form_of(parse_coding(kOf4Bits, "")), "nf4");
}

TEST(Coding, NamesAreThoseOfTheDecodedWeights) {
  const auto coding = parse_coding(R"({"quant_method":"fp8"})", "");
  EXPECT_EQ(decoded_names(coding, {"a.weight", "a.weight_scale_inv", "a.activation_scale", "b_scale_inv", "c.weight"}),
            (std::set<std::string>{"a.weight", "b_scale_inv", "c.weight"}));
  EXPECT_EQ(decoded_names(parse_coding(R"({"quant_method":"mxfp4"})", ""), {"a_blocks", "a_scales", "b_blocks"}),
            (std::set<std::string>{"a", "b_blocks"}));
}

TEST(Coding, PartsThatDoNotFitAreNamed) {
  const TempDir place;
  put_coded(place, R"({"quant_method":"fp8"})",
            {{"a.weight", "F8_E4M3", "5,7", std::string(35, '\0')},
             {"a.weight_scale_inv", "F32", "2,2", std::string(16, 'x')}});
  expect_error(ErrorCode::bad_input, {"a.weight", "cannot be decoded", "4 scales", "5 x 7"},
               [&] { const SafetensorsReader reader(place.path()); });
  put_coded(place, R"({"quant_method":"mxfp4"})",
            {{"a_blocks", "U8", "2,3", std::string(6, '\0')}, {"a_scales", "U8", "2", std::string(2, 'x')}});
  expect_error(ErrorCode::bad_input, {"a_scales", "cannot be decoded"},
               [&] { const SafetensorsReader reader(place.path()); });
}

}  // namespace
}  // namespace spillway::state
