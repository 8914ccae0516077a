// Gradients through a sink: whole ones teach it, factors come out reduced, and a refit holds from the next step on.
#include "spillway/subspace/sink.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "tests/subspace/subspace_case.h"

namespace spillway::subspace {
namespace {

class SinkTest : public ::testing::Test {
 protected:
  SinkTest()
      : cpu(device::make_cpu()), sink(it.description, it.layout), gradient(it.space().rows * it.space().columns) {
    const auto sizes = plan::device_workspace(it.layout, false, it.description.tokens);
    sink.use({*cpu, cpu->adopt_stream(nullptr), nullptr, sizes}, {});
    std::mt19937 random(3);
    for (auto& value : gradient) value = std::normal_distribution<float>()(random);
  }

  void begin(std::int64_t updates) {
    sink.begin(updates, 1, 2);
    sink.open(it.layout.blocks()[it.layout.tensors()[it.tensor].block]);
  }
  /// The factor of a token of ones.
  [[nodiscard]] std::vector<std::uint16_t> factor(unsigned side) {
    const std::vector<std::uint16_t> ones(side == 0 ? it.space().rows : it.space().columns, 0x3f80);
    std::vector<std::uint16_t> out(it.space().rank);
    sink.compress(it.tensor, side, reinterpret_cast<const std::byte*>(ones.data()), ones.size(), 1,
                  reinterpret_cast<std::byte*>(out.data()));
    return out;
  }
  void close() {
    optim::RefitRecord record;
    sink.close(it.tensor, {}, {}, reinterpret_cast<std::byte*>(&record));
    sink.fetch();
    sink.tell();
    sink.end(true);
  }

  const test::SubspaceCase it;
  const std::unique_ptr<device::Device> cpu;
  Sink sink;
  std::vector<float> gradient;
};

TEST_F(SinkTest, IsReadyWhenAWholeGradientHasComeAndReducesFactorsFromThenOn) {
  begin(0);
  EXPECT_TRUE(sink.wants_whole(it.tensor, 1));
  EXPECT_FALSE(sink.wants_whole(it.tensor, 2)) << "another virtual rank's";
  EXPECT_FALSE(sink.ready(it.tensor));
  EXPECT_EQ(factor(0), std::vector<std::uint16_t>(it.space().rank)) << "projectors of zeros";
  sink.take_whole(it.tensor, gradient);
  EXPECT_TRUE(sink.ready(it.tensor));
  EXPECT_FALSE(sink.wants_whole(it.tensor, 1));
  EXPECT_NE(factor(0), std::vector<std::uint16_t>(it.space().rank));
  close();
  EXPECT_EQ(sink.refit_count(it.tensor), 1U);
}

TEST_F(SinkTest, ARefitHoldsFromTheNextStepOn) {
  sink.restore(it.tensor, it.projectors(1, {.refits = 1, .whole = 1, .samples = 4}).data());
  begin(3);
  EXPECT_TRUE(sink.wants_whole(it.tensor, 1));
  const auto before = factor(1);
  sink.take_whole(it.tensor, gradient);
  EXPECT_EQ(factor(1), before);
  close();
  ASSERT_TRUE(sink.refits(it.tensor));
  sink.begin_refit(it.tensor);
  for (unsigned part = 0; part < Refit::kParts; ++part) {
    for (std::size_t tile = 0; tile < sink.refit_tiles(it.tensor, part); ++tile) sink.refit(part, tile);
  }
  std::vector<std::byte> fields(it.space().auxiliary_bytes());
  sink.end_refit(it.tensor, fields.data());
  begin(4);
  EXPECT_NE(factor(1), before);
  EXPECT_FALSE(sink.refits(it.tensor));
}

}  // namespace
}  // namespace spillway::subspace
