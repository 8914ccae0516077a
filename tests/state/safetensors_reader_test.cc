#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <random>

#include "spillway/state/safetensors.h"
#include "spillway/state/shards.h"
#include "tests/state/files.h"

namespace spillway::state {
namespace {

/// A file of one U8 tensor.
std::string one_tensor(const std::string& name, const std::string& data) {
  return safetensors(
      text(R"({")", name, R"(":{"dtype":"U8","shape":[)", data.size(), R"(],"data_offsets":[0,)", data.size(), "]}}"),
      data);
}

std::string index_of(const std::vector<std::pair<std::string, std::string>>& files) {
  return serialize_index({files.begin(), files.end()}, 0, 0);
}

void refused(const std::filesystem::path& place, const std::vector<std::string>& parts) {
  expect_error(ErrorCode::bad_input, parts, [&] { const SafetensorsReader reader(place); });
}

TEST(SafetensorsReader, OpensOneFileOrItsDirectory) {
  TempDir dir;
  put(dir / "model.safetensors", one_tensor("w", "abcd"));
  for (const auto& place : {dir.path(), dir / "model.safetensors"}) {
    const SafetensorsReader reader(place);
    ASSERT_EQ(reader.files().size(), 1U);
    EXPECT_EQ(reader.files().front(), dir / "model.safetensors");
    ASSERT_NE(reader.find("w"), nullptr);
    EXPECT_EQ(reader.find("v"), nullptr);
    EXPECT_EQ(read_all(reader, *reader.find("w")), "abcd");
  }
}

TEST(SafetensorsReader, OpensTheShardsOfAnIndex) {
  TempDir dir;
  put(dir / "one.safetensors", one_tensor("a", "1111"));
  put(dir / "two.safetensors", one_tensor("b", "22"));
  put(dir / "model.safetensors.index.json", index_of({{"a", "one.safetensors"}, {"b", "two.safetensors"}}));
  SafetensorsReader reader(dir.path());
  const SafetensorsReader moved(std::move(reader));
  EXPECT_EQ(moved.files().size(), 2U);
  EXPECT_EQ(moved.tensors().size(), 2U);
  EXPECT_EQ(read_all(moved, *moved.find("a")), "1111");
  EXPECT_EQ(read_all(moved, *moved.find("b")), "22");
}

TEST(SafetensorsReader, ReadsAnyRange) {
  TempDir dir;
  std::string data(1000, '\0');
  std::iota(data.begin(), data.end(), '\0');
  put(dir / "x.safetensors", one_tensor("w", data));
  const SafetensorsReader reader(dir / "x.safetensors");
  const auto& tensor = *reader.find("w");
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    const auto first = random() % 1001;
    const auto count = random() % (1001 - first);
    std::string out(count + 1, '?');
    reader.read(tensor, first, count, reinterpret_cast<std::byte*>(out.data()));
    ASSERT_EQ(out, data.substr(first, count) + "?");
  }
}

TEST(SafetensorsReader, ReadsATensorOfManyGranules) {
  TempDir dir;
  std::vector<std::uint16_t> values(5'000'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i * 7 + i / 65536);
  put(dir / "x.safetensors",
      safetensors(R"({"w":{"dtype":"BF16","shape":[5000000],"data_offsets":[0,10000000]}})", raw(values)));
  const SafetensorsReader reader(dir / "x.safetensors");
  EXPECT_EQ(read_all(reader, *reader.find("w")), raw(values));
  std::vector<float> floats(values.size());
  reader.read_fp32(*reader.find("w"), 0, values.size(), floats.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &floats[i], 4);
    ASSERT_EQ(bits, static_cast<std::uint32_t>(values[i]) << 16U) << i;
  }
}

TEST(SafetensorsReader, ReadsFp32OfEveryFloatType) {
  TempDir dir;
  const std::string data = raw<double>({0.5, -3}) + raw<float>({0.5F, -3}) + raw<std::uint16_t>({0x3F00, 0xC040}) +
                           raw<std::uint16_t>({0x3800, 0xC200}) + "ab";
  put(dir / "x.safetensors", safetensors(R"({"f64":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},)"
                                         R"("f32":{"dtype":"F32","shape":[2],"data_offsets":[16,24]},)"
                                         R"("bf16":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},)"
                                         R"("f16":{"dtype":"F16","shape":[2],"data_offsets":[28,32]},)"
                                         R"("u8":{"dtype":"U8","shape":[2],"data_offsets":[32,34]}})",
                                         data));
  const SafetensorsReader reader(dir / "x.safetensors");
  for (const auto* name : {"f64", "f32", "bf16", "f16"}) {
    std::vector<float> out(3, 7);
    reader.read_fp32(*reader.find(name), 0, 2, out.data());
    EXPECT_EQ(out, (std::vector<float>{0.5F, -3, 7})) << name;
    reader.read_fp32(*reader.find(name), 1, 1, out.data());
    EXPECT_EQ(out[0], -3) << name;
  }
  float out = 0;
  expect_error(ErrorCode::bad_input, {"tensor u8", "U8", "BF16"},
               [&] { reader.read_fp32(*reader.find("u8"), 0, 1, &out); });
}

TEST(SafetensorsReader, ReadingBeyondATensorIsAFaultOfTheCaller) {
  TempDir dir;
  put(dir / "x.safetensors", one_tensor("w", "abcd"));
  const SafetensorsReader reader(dir / "x.safetensors");
  std::array<std::byte, 8> out{};
  const auto beyond = [&](std::uint64_t first, std::uint64_t count) {
    expect_error(ErrorCode::internal, {"tensor w"}, [&] { reader.read(*reader.find("w"), first, count, out.data()); });
  };
  beyond(0, 5);
  beyond(4, 1);
  beyond(5, 0);
  beyond(1, ~std::uint64_t{0});
  reader.read(*reader.find("w"), 4, 0, out.data());
}

TEST(SafetensorsReader, AFileThatShrinksWhileItIsOpenIsAnError) {
  TempDir dir;
  put(dir / "x.safetensors", one_tensor("w", std::string(10'000, 'x')));
  const SafetensorsReader reader(dir / "x.safetensors");
  std::filesystem::resize_file(dir / "x.safetensors", 5000);
  expect_error(ErrorCode::io, {"x.safetensors", "5000"}, [&] { (void)read_all(reader, *reader.find("w")); });
}

TEST(SafetensorsReader, NothingThereIsSaidWithWhatIsThere) {
  TempDir dir;
  refused(dir / "nowhere", {(dir / "nowhere").string(), "no such file"});
  refused(dir.path(), {dir.path().string(), "model.safetensors", "holds nothing"});
  put(dir / "config.json", "{}");
  put(dir / "pytorch_model.bin", "x");
  refused(dir.path(), {"config.json, pytorch_model.bin", "Convert"});
  for (int i = 0; i < 20; ++i) put(dir / text("zz", i), "");
  refused(dir.path(), {"and 14 more"});
}

TEST(SafetensorsReader, ALengthThatLiesIsRefused) {
  TempDir dir;
  const auto file = dir / "x.safetensors";
  const auto good = one_tensor("w", "abcd");
  for (const std::size_t length : {0U, 1U, 7U}) {
    put(file, good.substr(0, length));
    refused(file, {file.string(), "too short"});
  }
  put(file, length_field(0));
  refused(file, {file.string(), "not JSON"});
  put(file, length_field(1000) + good.substr(8));
  refused(file, {file.string(), "1000", "truncated"});
  put(file, length_field(100'000'001) + good.substr(8));
  refused(file, {file.string(), "100000001", "100000000"});
  put(file, length_field(~std::uint64_t{0}) + good.substr(8));
  refused(file, {file.string(), "18446744073709551615"});
}

TEST(SafetensorsReader, EveryTruncationIsRefused) {
  TempDir dir;
  const auto file = dir / "x.safetensors";
  const auto good = one_tensor("w", "abcdefgh");
  for (std::size_t length = 0; length < good.size(); ++length) {
    put(file, good.substr(0, length));
    refused(file, {file.string()});
  }
}

TEST(SafetensorsReader, WhatIsNotARegularFileIsRefused) {
  TempDir dir;
  const auto pipe = dir / "model.safetensors";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  refused(pipe, {pipe.string(), "not a regular file"});
  refused(dir.path(), {pipe.string(), "not a regular file"});
}

TEST(SafetensorsReader, AnIndexThatLiesIsRefused) {
  TempDir dir;
  const auto index = dir / "model.safetensors.index.json";
  put(dir / "one.safetensors", one_tensor("a", "1111"));
  put(dir / "two.safetensors", one_tensor("b", "22"));
  put(index, index_of({{"a", "one.safetensors"}, {"c", "three.safetensors"}}));
  refused(dir.path(), {index.string(), "three.safetensors", "c", "missing"});
  put(index, index_of({{"a", "one.safetensors"}, {"c", "two.safetensors"}}));
  refused(dir.path(), {index.string(), "tensor c", "two.safetensors"});
  put(index, index_of({{"a", "two.safetensors"}, {"b", "one.safetensors"}}));
  refused(dir.path(), {index.string(), "tensor a", "two.safetensors"});
  put(index, index_of({{"a", "../one.safetensors"}}));
  refused(dir.path(), {index.string(), "tensor a", "../one.safetensors"});
}

TEST(SafetensorsReader, ATensorInTwoShardsIsRefused) {
  TempDir dir;
  put(dir / "one.safetensors", one_tensor("a", "1111"));
  put(dir / "two.safetensors", safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                           R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                           "xy"));
  put(dir / "model.safetensors.index.json", index_of({{"a", "one.safetensors"}, {"b", "two.safetensors"}}));
  refused(dir.path(), {"tensor a", "one.safetensors", "two.safetensors"});
}

/// Some bytes changed, taken out, put in or doubled.
std::string mutated(std::string bytes, std::mt19937_64& random) {
  static const std::string kSalt = "{}[]\",:0123456789-eE.\\u \0\xff";
  const auto edits = 1 + random() % 4;
  for (std::uint64_t i = 0; i < edits && !bytes.empty(); ++i) {
    const auto at = random() % bytes.size();
    const auto length = std::min<std::size_t>(1 + random() % 12, bytes.size() - at);
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = kSalt[random() % kSalt.size()];
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, 1, kSalt[random() % kSalt.size()]);
        break;
      default:
        bytes.insert(random() % bytes.size(), bytes.substr(at, length));
        break;
    }
  }
  return bytes;
}

TEST(SafetensorsReader, NoDamagedHeaderLeadsOutOfTheFile) {
  TempDir dir(fast_place());
  const auto file = dir / "x.safetensors";
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"U8","shape":[],"data_offsets":[32,33]}})";
  const std::string data(33, 'd');
  std::mt19937_64 random(11);
  int accepted = 0;
  for (int round = 0; round < 2500; ++round) {
    // Half of them with a length that fits the damaged header, so that the parser sees all of it.
    const bool fitted = round % 2 == 0;
    const auto bytes = fitted ? safetensors(mutated(json, random), data) : mutated(safetensors(json, data), random);
    put(file, bytes);
    try {
      const SafetensorsReader reader(file);
      for (const auto& [name, tensor] : reader.tensors()) {
        ASSERT_LE(tensor.offset + tensor.elements * tensor.element_bytes, bytes.size());
        ASSERT_EQ(read_all(reader, tensor), bytes.substr(tensor.offset, tensor.elements * tensor.element_bytes));
      }
      ++accepted;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::bad_input) << error.what();
      ASSERT_NE(std::string(error.what()).find(file.string()), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(accepted, 0) << "a changed name or metadata is no damage";
  EXPECT_LT(accepted, 2000);
}

}  // namespace
}  // namespace spillway::state
