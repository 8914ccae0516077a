#include "spillway/state/convert.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <random>

#include "spillway/state/rule.h"
#include "tests/state/files.h"

namespace spillway::state {
namespace {

constexpr std::uint64_t kElements = kChunkGranule;

struct Memory {
  explicit Memory(ComputeType type)
      : weight(kElements * field_bytes(type).weight, std::byte{0xEE}),
        state(kElements * 10, std::byte{0xEE}),
        fields(chunk_fields(type, kElements, weight.data(), state.data())) {}
  std::vector<std::byte> weight, state;
  ChunkFields fields;
};

std::vector<float> awkward_masters() {
  std::vector<float> out{0.0F,
                         -0.0F,
                         1.0F,
                         std::numeric_limits<float>::max(),
                         std::numeric_limits<float>::denorm_min(),
                         std::numeric_limits<float>::infinity(),
                         std::bit_cast<float>(0x7FC01234U),
                         std::bit_cast<float>(0x3F808000U),
                         std::bit_cast<float>(0xFFFFFFFFU)};
  std::mt19937_64 random(2);
  while (out.size() < 500) out.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  return out;
}

TEST(Convert, TheRemainderIsFirstInTheState) {
  Memory bf16(ComputeType::bf16);
  EXPECT_EQ(bf16.fields.remainder, bf16.state.data());
  Memory fp32(ComputeType::fp32);
  EXPECT_EQ(fp32.fields.remainder, nullptr);
  const auto weight_only = chunk_fields(ComputeType::bf16, kElements, bf16.weight.data(), nullptr);
  EXPECT_EQ(weight_only.remainder, nullptr);
}

TEST(Convert, MastersSurviveBitForBitAndNothingElseChanges) {
  const auto masters = awkward_masters();
  for (const auto type : {ComputeType::bf16, ComputeType::fp16, ComputeType::fp32}) {
    Memory memory(type);
    const Memory before(type);
    constexpr std::uint64_t kFirst = 37;
    to_chunk(masters, memory.fields, kFirst);
    std::vector<float> again(masters.size());
    from_chunk(memory.fields, kFirst, again);
    EXPECT_EQ(raw(again), raw(masters));
    const auto unit = field_bytes(type).weight;
    for (std::size_t i = 0; i < memory.weight.size(); ++i) {
      const bool inside = i >= kFirst * unit && i < (kFirst + masters.size()) * unit;
      if (!inside) {
        ASSERT_EQ(memory.weight[i], before.weight[i]) << i;
      }
    }
    const std::size_t moments = traits(type).remainder * kElements;
    for (std::size_t i = moments; i < memory.state.size(); ++i) ASSERT_EQ(memory.state[i], std::byte{0xEE});
  }
}

TEST(Convert, ABf16MasterHasNoRemainder) {
  Memory memory(ComputeType::bf16);
  const std::vector<float> masters{1.5F, -2.0F, 0.0F, std::bit_cast<float>(0xFF7F0000U)};
  to_chunk(masters, memory.fields, 0);
  for (std::size_t i = 0; i < masters.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<const std::uint16_t*>(memory.fields.remainder)[i], 0);
    EXPECT_EQ(reinterpret_cast<const std::uint16_t*>(memory.weight.data())[i],
              std::bit_cast<std::uint32_t>(masters[i]) >> 16U);
  }
}

TEST(Convert, AnFp16WeightIsTheMasterRoundedToNearestEven) {
  Memory memory(ComputeType::fp16);
  const std::vector<float> masters{1.0F, -2.0F, 1.00048828125F, 1.00146484375F, 1e6F};
  to_chunk(masters, memory.fields, 0);
  const auto* weights = reinterpret_cast<const std::uint16_t*>(memory.weight.data());
  EXPECT_EQ(std::vector<std::uint16_t>(weights, weights + 5),
            (std::vector<std::uint16_t>{0x3C00, 0xC000, 0x3C00, 0x3C02, 0x7C00}));
  const auto* kept = reinterpret_cast<const float*>(memory.fields.remainder);
  EXPECT_EQ(raw(std::vector<float>(kept, kept + 5)), raw(masters));
}

TEST(Convert, AWeightCanBeItsMaster) {
  const std::vector<float> masters{1.5F, -2.0F, 0.0F, 0.25F};
  for (const auto type : {ComputeType::bf16, ComputeType::fp16, ComputeType::fp32}) {
    Memory memory(type);
    to_chunk(masters, memory.fields, 0);
    std::ranges::fill(memory.state, std::byte{0xEE});
    set_masters(type, memory.weight.data(), memory.fields.remainder, masters.size());
    std::vector<float> again(masters.size());
    from_chunk(memory.fields, 0, again);
    EXPECT_EQ(again, masters);
    EXPECT_EQ(memory.state[masters.size() * traits(type).remainder], std::byte{0xEE});
  }
}

TEST(Convert, OutOfRangeIsAFaultOfTheCaller) {
  Memory memory(ComputeType::bf16);
  std::vector<float> masters(2);
  to_chunk(masters, memory.fields, kElements - 2);
  to_chunk({}, memory.fields, kElements);
  expect_error(ErrorCode::internal, {"2 elements at 2047"}, [&] { to_chunk(masters, memory.fields, kElements - 1); });
  expect_error(ErrorCode::internal, {"2 elements"}, [&] { from_chunk(memory.fields, kElements + 1, masters); });
  const auto weight_only = chunk_fields(ComputeType::bf16, kElements, memory.weight.data(), nullptr);
  expect_error(ErrorCode::internal, {"remainder"}, [&] { to_chunk(masters, weight_only, 0); });
}

TEST(Convert, AFrozenChunkHoldsTheWeightThatTheMasterWouldHave) {
  std::mt19937 random(9);
  std::vector<float> masters(300), back(300);
  for (auto& master : masters) master = std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0xBFFFFFFFU);
  for (const auto type : {ComputeType::bf16, ComputeType::fp16, ComputeType::fp32}) {
    std::vector<std::byte> weight(300 * 4), state(300 * 4), frozen(300 * 4);
    to_chunk(masters, chunk_fields(type, 300, weight.data(), state.data()), 0);
    const auto fields = chunk_fields(type, 300, frozen.data(), nullptr, Training::frozen);
    to_chunk(masters, fields, 0);
    EXPECT_EQ(frozen, weight);
    from_chunk(fields, 0, back);
    if (type == ComputeType::fp32) {
      EXPECT_EQ(std::memcmp(back.data(), masters.data(), 1200), 0);
      continue;
    }
    to_chunk(back, fields, 0);
    EXPECT_EQ(frozen, weight) << "what is read is the weight itself";
  }
}

TEST(Convert, APackedChunkHoldsCodesOfWholeBlocks) {
  std::mt19937 random(10);
  std::normal_distribution<float> draw(0, 1);
  std::vector<float> masters(200), once(200), twice(200), part(70);
  for (auto& master : masters) master = draw(random);
  for (const auto form : {Form::nf4, Form::int8}) {
    const Chunk chunk{.elements = kChunkGranule,
                      .training = Training::frozen,
                      .form = form,
                      .packing = packing_of(form, ComputeType::bf16)};
    std::vector<std::byte> weight(2 * kChunkGranule);
    const auto fields = chunk_fields(ComputeType::bf16, chunk, weight.data(), nullptr);
    to_chunk(masters, fields, 128);
    from_chunk(fields, 128, once);
    for (std::size_t i = 0; i < masters.size(); ++i) EXPECT_NEAR(once[i], masters[i], 0.6) << i;
    from_chunk(fields, 131, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), once.begin() + 3));
    to_chunk(once, fields, 192);
    from_chunk(fields, 192, twice);
    for (std::size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(once[i], twice[i], 1e-5) << "which they stand for";
    expect_error(ErrorCode::internal, {"where no block begins"}, [&] { to_chunk(masters, fields, 32); });
  }
}

TEST(Convert, AChunkOfNestedScalesHoldsWholeGroups) {
  const auto packing = packing_of(Form::nf4_nested, ComputeType::bf16);
  const auto group = packing.values;
  std::mt19937 random(11);
  std::normal_distribution<float> draw(0, 1);
  std::vector<float> masters(group + 200), once(masters.size()), part(70);
  for (auto& master : masters) master = draw(random);
  const Chunk chunk{
      .elements = 3 * packing.elements, .training = Training::frozen, .form = Form::nf4_nested, .packing = packing};
  std::vector<std::byte> weight(2 * chunk.elements);
  auto fields = chunk_fields(ComputeType::bf16, chunk, weight.data(), nullptr);
  fields.scale_mean = 2.4F;
  to_chunk(masters, fields, group);
  from_chunk(fields, group, once);
  for (std::size_t i = 0; i < masters.size(); ++i) EXPECT_NEAR(once[i], masters[i], 0.8) << i;
  from_chunk(fields, group + 131, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), once.begin() + 131));
  expect_error(ErrorCode::internal, {"where no block begins"}, [&] { to_chunk(masters, fields, 64); });
}

}  // namespace
}  // namespace spillway::state
