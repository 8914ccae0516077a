#include "spillway/machine/calibrate.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "spillway/machine/facts.h"
#include "spillway/machine/load.h"
#include "spillway/memory/arena.h"
#include "spillway/sys/faulty_ring.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::machine {
namespace {

TEST(FactsTest, AreThoseOfThisMachine) {
  const Profile profile = facts();
  EXPECT_GE(profile.cores, 1U);
  EXPECT_GT(profile.dram_total, 0U);
  EXPECT_LE(profile.dram_available, profile.dram_total);
  EXPECT_TRUE(profile.paths.empty());
  EXPECT_EQ(profile.compute_flops_per_second, 0);
}

class CalibrateTest : public ::testing::Test {
 protected:
  static storage::PathOptions options(const std::filesystem::path& directory) {
    storage::PathOptions out;
    out.directory = directory;
    out.capacity = 80 * MiB;
    out.run = "test";
    return out;
  }

  testing::TemporaryDirectory directory_;
  memory::Arena arena_{16 * MiB};
  std::shared_ptr<sys::Faults> faults_ = std::make_shared<sys::Faults>();
  storage::Path path_{options(directory_.path()), sys::faulty(sys::make_ring, faults_)};
};

TEST_F(CalibrateTest, KnowsEveryRateOfAPath) {
  const PathProfile profile = calibrate_path(path_, "fast", arena_.span(), {8 * MiB, 72 * MiB}, 0);
  EXPECT_EQ(profile.name, "fast");
  EXPECT_GT(profile.read_bytes_per_second, 0);
  EXPECT_GT(profile.write_bytes_per_second, 0);
  EXPECT_GT(profile.mixed_bytes_per_second, 0);
  EXPECT_GT(profile.cores_at_full_speed, 0);
}

TEST_F(CalibrateTest, StaysInItsArea) {
  std::ignore = calibrate_path(path_, "0", arena_.span(), {8 * MiB, 64 * MiB}, 0);
  for (const sys::Piece& piece : faults_->submitted()) {
    EXPECT_GE(piece.offset, 9 * MiB);
    EXPECT_LE(piece.offset + piece.bytes, 73 * MiB);
  }
}

TEST_F(CalibrateTest, RefusesTooLittle) {
  EXPECT_ERROR(std::ignore = calibrate_path(path_, "0", arena_.span().first(8 * MiB), {0, 64 * MiB}),
               ErrorCode::internal, "16.0 MiB of memory");
  EXPECT_ERROR(std::ignore = calibrate_path(path_, "0", arena_.span(), {0, 8 * MiB}), ErrorCode::internal, "64.0 MiB");
  EXPECT_ERROR(std::ignore = calibrate_path(path_, "0", arena_.span(), {0, 1 * GiB}, 0), ErrorCode::internal,
               "capacity");
}

TEST_F(CalibrateTest, PassesOnAFailureOfTheDrive) {
  faults_->fail(sys::Operation::write, 3 * MiB, EIO);
  EXPECT_ERROR(std::ignore = calibrate_path(path_, "0", arena_.span(), {0, 64 * MiB}, 0), ErrorCode::io, "EIO");
}

TEST_F(CalibrateTest, ALoadMovesWhatItSays) {
  Load load(path_, arena_.span(), {0, 70 * MiB}, 4 * MiB);
  const LoadResult filled = load.fill(3);
  EXPECT_EQ(filled.written, 68 * MiB);
  EXPECT_EQ(filled.read, 0U);
  const LoadResult mixed = load.run(1, 2, 0);
  EXPECT_EQ(mixed.read, 4 * MiB);
  EXPECT_EQ(mixed.written, 8 * MiB);
  EXPECT_DOUBLE_EQ(mixed.rate() * mixed.seconds, static_cast<double>(12 * MiB));
}

TEST_F(CalibrateTest, ASteadyLoadCountsWhatEndsInItsTime) {
  Load load(path_, arena_.span(), {0, 70 * MiB}, 4 * MiB);
  static_cast<void>(load.fill(3));
  const LoadResult nothing = load.steady(2, 1, 0);  // then all that was moved counts
  EXPECT_GT(nothing.read + nothing.written, 0U);
  EXPECT_LE(nothing.read, 8 * MiB);
  const auto before = path_.counters().written;
  const LoadResult some = load.steady(0, 3, 0.02);
  EXPECT_EQ(some.read, 0U);
  EXPECT_GT(some.written, 0U);
  EXPECT_LE(some.written, path_.counters().written - before);  // what came before, or after
}

TEST_F(CalibrateTest, ALoadThatDoesNotFitIsRefused) {
  EXPECT_ERROR(Load(path_, arena_.span(), {}, 100), ErrorCode::internal, "multiples of 1 MiB");
  Load load(path_, arena_.span(), {0, 64 * MiB}, 4 * MiB);
  EXPECT_ERROR(load.fill(5), ErrorCode::internal, "5 streams");
  EXPECT_ERROR(load.run(0, 0, 1), ErrorCode::internal, "0 streams");
}

TEST_F(CalibrateTest, UpdateAndCopyHaveARate) {
  EXPECT_GT(calibrate_update(arena_.span(), 0), 0);
  EXPECT_GT(calibrate_copy(arena_.span(), 0), 0);
  EXPECT_ERROR(std::ignore = calibrate_update({}, 0), ErrorCode::internal, "16.0 MiB");
  EXPECT_ERROR(std::ignore = calibrate_copy({}, 0), ErrorCode::internal, "16.0 MiB");
}

TEST_F(CalibrateTest, EveryKindOfUpdateHasARate) {
  using namespace kernels;
  for (const auto weights : {Weights::bf16, Weights::fp32, Weights::fp16}) {
    for (const auto moments : {Moments::exact, Moments::bf16, Moments::int8}) {
      for (const auto optimizer : {Optimizer::adamw, Optimizer::lion, Optimizer::sgd}) {
        EXPECT_GT(calibrate_update(arena_.span(), 0, {{weights, moments}, optimizer}), 0);
      }
    }
  }
}

TEST(CallsPerSecondTest, WarmsUpOnceAndRunsAtLeastOnce) {
  int calls = 0;
  EXPECT_GT(calls_per_second([&] { ++calls; }, 0), 0);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace spillway::machine
