// Tensors in and out in parts, across chunks; what was never stored is zero.
#include "spillway/execute/tensors.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using test::Planned;

test::PlanOptions in_parts(double share) {
  auto shape = test::layers();
  shape.ffn = 512;  // a matrix lies in several chunks
  return {.shape = shape, .placement = {share, share, share, 1}, .durability = plan::Durability::none};
}

TEST(Tensors, KeepWhatWasStoredInParts) {
  for (const double share : {0.0, 0.5, 1.0}) {
    const Planned planned(in_parts(share));
    execute::Run run(planned.run_plan(), planned.volumes(false), 1, {});
    std::vector<float> all(planned.layout.tensors()[0].elements);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(i) * 1e-3F;
    const auto third = all.size() / 3;
    run.store(0, third, std::span(all).subspan(third));
    run.store(0, 0, std::span(all).first(third));
    std::vector<float> found(all.size());
    for (std::size_t at = 0; at < all.size(); at += 1000) {
      const auto count = std::min<std::size_t>(1000, all.size() - at);
      run.fetch(0, at, std::span(found).subspan(at, count));
    }
    EXPECT_EQ(found, all) << "the masters are fp32, bit by bit";
  }
}

TEST(Tensors, AreZeroBeforeTheyAreStored) {
  const Planned planned(in_parts(0));
  execute::Run run(planned.run_plan(), planned.volumes(false), 1, {});
  std::vector<float> found(planned.layout.tensors()[1].elements, 7);
  run.fetch(1, 0, found);
  EXPECT_EQ(found, std::vector<float>(found.size()));
}

TEST(Tensors, EndWhereTheyEnd) {
  const Planned planned(in_parts(1));
  execute::Run run(planned.run_plan(), planned.volumes(false), 1, {});
  std::vector<float> values(2);
  const auto end = planned.layout.tensors()[0].elements;
  EXPECT_NO_THROW(run.fetch(0, end - 2, values));
  EXPECT_ERROR(run.fetch(0, end - 1, values), ErrorCode::bad_input, "which has");
  EXPECT_ERROR(run.store(0, end - 1, values), ErrorCode::bad_input, "which has");
}

TEST(Tensors, GoThroughSavedState) {
  const Planned planned(in_parts(0.5));
  execute::Run run(planned.run_plan(), planned.volumes(false), 1, {}),
      other(planned.run_plan(), Planned(in_parts(0)).volumes(false), 1, {});
  test::fill(run, planned);
  test::train_step(run, planned);
  run.save_weights(planned.where(), {.max_shard = 1 * GiB});
  run.save_state(planned.where());
  EXPECT_EQ(other.load_state(planned.where(), planned.where(), 1, {}), planned.description.state_format);
  EXPECT_EQ(test::masters(other, planned), test::masters(run, planned));
  EXPECT_EQ(other.step().protocol().position().updates, 1);
  for (auto* it : {&run, &other}) test::train_step(*it, planned);
  EXPECT_EQ(test::masters(other, planned), test::masters(run, planned));
}

}  // namespace
}  // namespace spillway::execute
