// Field groups on a path: written, read again, given up.
#include "spillway/execute/store.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "spillway/execute/resources.h"
#include "spillway/execute/run_storage.h"
#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using storage::Direction;
using test::Planned;

class StoreTest : public ::testing::TestWithParam<plan::Durability> {
 protected:
  StoreTest() : planned({.durability = GetParam()}), storage(planned.run_plan(), planned.volumes(false)) {
    Recovery recovery;
    EXPECT_TRUE(storage.open({}, recovery));
    resources.emplace(planned.run_plan(), 1, storage.paths());
    storage.start(recovery);
  }
  ~StoreTest() override { storage.stop(); }

  [[nodiscard]] std::span<std::byte> memory(Bytes at, Bytes bytes) { return resources->scratch().subspan(at, bytes); }
  [[nodiscard]] Bytes weights() const { return weight_bytes(planned.description.rule(), planned.layout.chunks()[0]); }
  [[nodiscard]] Bytes states() const { return state_bytes(planned.description.rule(), planned.layout.chunks()[0]); }
  void read(plan::ObjectKind kind, std::span<std::byte> to) {
    storage.store()->run(
        {.direction = Direction::read, .kind = kind, .subject = 0, .memory = to.data(), .bytes = to.size()});
  }

  const Planned planned;
  std::optional<Resources> resources;
  RunStorage storage;
};

TEST_P(StoreTest, ReadsWhatWasWrittenLast) {
  auto& store = *storage.store();
  const auto out = memory(0, weights()), in = memory(round_up(weights(), 4096), weights());
  for (const auto value : {std::byte{1}, std::byte{2}}) {
    std::ranges::fill(out, value);
    store.write(plan::ObjectKind::weight, 0, out, 1);
    std::ranges::fill(in, std::byte{});
    read(plan::ObjectKind::weight, in);
    EXPECT_TRUE(std::ranges::equal(in, out));
  }
}

TEST_P(StoreTest, RefusesToReadWhatWasNeverWritten) {
  EXPECT_ERROR(read(plan::ObjectKind::state, memory(0, states())), ErrorCode::internal, "before it was written");
}

TEST_P(StoreTest, RefusesAnotherLength) {
  const std::span more(resources->scratch().data(), weights() + 4 * MiB);  // of which nothing is read
  EXPECT_ERROR(storage.store()->write(plan::ObjectKind::weight, 0, more, 1), ErrorCode::internal, "which has");
}

TEST_P(StoreTest, CountsPlaces) {
  auto& store = *storage.store();
  EXPECT_EQ(store.place_bytes(plan::ObjectKind::weight, 0), round_up(weights(), storage::kExtentAlignment));
  const auto free = storage.pool()->free();
  EXPECT_FALSE(store.written(plan::ObjectKind::weight, 0));
  store.write(plan::ObjectKind::weight, 0, memory(0, weights()), 1);
  EXPECT_TRUE(store.written(plan::ObjectKind::weight, 0));
  EXPECT_EQ(storage.pool()->free(), free - store.place_bytes(plan::ObjectKind::weight, 0));
  store.write(plan::ObjectKind::weight, 0, memory(0, weights()), 2);
  EXPECT_EQ(storage.pool()->free(), free - store.place_bytes(plan::ObjectKind::weight, 0))
      << "nothing has to survive the run";
}

TEST_P(StoreTest, GivesUpGradientsAndActivations) {
  auto& store = *storage.store();
  const auto free = storage.pool()->free();
  const auto bytes = grad_bytes(planned.description.rule(), planned.layout.chunks()[0]);
  if (GetParam() == plan::Durability::none) {
    store.write(plan::ObjectKind::gradient, 0, memory(0, bytes), 1);
    EXPECT_LT(storage.pool()->free(), free);
  }
  store.drop_transient();
  EXPECT_EQ(storage.pool()->free(), free);
  EXPECT_FALSE(store.written(plan::ObjectKind::gradient, 0));
}

TEST_P(StoreTest, MakesASnapshotOfBothParts) {
  if (GetParam() == plan::Durability::none) GTEST_SKIP() << "has no journal";
  auto& store = *storage.store();
  store.write(plan::ObjectKind::weight, 0, memory(0, weights()), 3);
  store.write(plan::ObjectKind::state, 0, memory(0, states()), 3);
  EXPECT_FALSE(store.published(0, 3));
  store.publish(0, 3);
  EXPECT_TRUE(store.published(0, 3));
  EXPECT_TRUE(store.published(0, 2));
  EXPECT_FALSE(store.published(0, 4));
  const auto found = store.stored(0, 3, storage.paths());
  EXPECT_EQ(found.object, 0U);
  EXPECT_EQ(found.version, 3U);
  Bytes bytes = 0;
  for (const auto& piece : found.pieces) bytes += piece.bytes;
  EXPECT_EQ(bytes, weights() + states());
}

TEST_P(StoreTest, KeepsPlacesForGradientsThatComeLate) {
  if (GetParam() == plan::Durability::none) GTEST_SKIP() << "has no journal";
  auto& store = *storage.store();
  const auto free = storage.pool()->free();
  Bytes gradients = 0;
  for (std::size_t c = 0; c < planned.layout.chunks().size(); ++c)
    gradients += store.place_bytes(plan::ObjectKind::gradient, c);
  store.expect_gradients(1);
  EXPECT_EQ(storage.pool()->free(), free) << "snapshots of the step before may take them";
  store.reserve_gradients(1);
  EXPECT_LE(storage.pool()->free(), free - gradients);
  const auto kept = storage.pool()->free();
  store.write(plan::ObjectKind::gradient, 0,
              memory(0, grad_bytes(planned.description.rule(), planned.layout.chunks()[0])), 1);
  EXPECT_EQ(storage.pool()->free(), kept) << "it has taken a place that was not its own";
}

/// With a journal, too, which has nothing under way that would release any.
TEST_P(StoreTest, RefusesAWriteThatWaitsForPlacesThatNothingWillRelease) {
  auto& store = *storage.store();
  auto& pool = *storage.pool();
  std::vector<storage::Place> taken(1);
  while (pool.free() > 0) {
    pool.run({.direction = Direction::write, .memory = memory(0, 4096).data(), .bytes = 4096, .places = taken});
  }
  EXPECT_ERROR(store.write(plan::ObjectKind::weight, 0, memory(0, weights()), 1), ErrorCode::does_not_fit, "lacking");
}

TEST(Store, NamesChunksByTheirTensors) {
  const Planned planned;
  const auto name = name_of(planned.layout, plan::ObjectKind::state, 0);
  EXPECT_TRUE(name.starts_with("remainder and moments of layers.0.up")) << name;
  EXPECT_TRUE(name.ends_with("(chunk 0)")) << name;
}

INSTANTIATE_TEST_SUITE_P(Durability, StoreTest, ::testing::Values(plan::Durability::none, plan::Durability::step));

}  // namespace
}  // namespace spillway::execute
