// What goes wrong at the door to the operating system, while a durable run works: a correct result or a clear error,
// and the last good step intact.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <random>

#include "spillway/engine_testing.h"
#include "spillway/sys/faulty_ring.h"
#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"

namespace spillway {
namespace {

using sys::Operation;
using test::Directory;
using test::DurableRun;

class Fault : public ::testing::Test {
 protected:
  Fault() {  // what the drives are asked for, to choose from
    const auto faults = std::make_shared<sys::Faults>();
    auto settings = DurableRun::settings(where_.path(), 1, kPlacement);
    use_ring(settings, sys::faulty(sys::make_ring, faults));
    Engine engine(run_.description(), settings);
    engine.start();
    run_.fill(engine);
    run_.train(engine, 1, run_.steps());
    engine.close();
    pieces_ = faults->submitted();
  }

  struct Outcome {
    std::uint64_t ended = 0;  ///< steps that did
    std::string error;        ///< that stopped it; empty: nothing did
  };

  /// A run with that script; then what it has left is looked at without it.
  Outcome live(std::size_t paths, const std::shared_ptr<sys::Faults>& faults) {
    auto settings = DurableRun::settings(where_.path(), paths, kPlacement);
    settings.storage.overwrite = true;
    use_ring(settings, sys::faulty(sys::make_ring, faults));
    Outcome out;
    try {
      Engine engine(run_.description(), settings);
      engine.start();
      run_.fill(engine);
      run_.train(engine, 1, run_.steps(), [&](std::uint64_t step) { out.ended = step; });
      EXPECT_TRUE(run_.holds(engine, run_.steps()));
      engine.close();
    } catch (const Error& error) {
      out.error = error.what();
    }
    return out;
  }

  void expect_intact(std::size_t paths, const Outcome& outcome, const std::string& what) {
    Engine engine(run_.description(), DurableRun::settings(where_.path(), paths, kPlacement));
    const auto found = engine.start({.reopen = true});
    const auto step = found.has_step ? found.step : 0;
    ASSERT_GE(step + 1, outcome.ended) << what << ": " << outcome.error;
    if (!found.has_step) run_.fill(engine);
    ASSERT_TRUE(run_.holds(engine, step)) << what << ": " << outcome.error;
    run_.train(engine, step + 1, run_.steps());
    ASSERT_TRUE(run_.holds(engine, run_.steps())) << what;
    engine.close();
  }

  /// One of the pieces of that kind.
  [[nodiscard]] Bytes any(Operation operation) {
    std::vector<Bytes> offsets;
    for (const auto& piece : pieces_) {
      if (piece.operation == operation) offsets.push_back(piece.offset);
    }
    return offsets.empty() ? 0 : offsets[random_() % offsets.size()];
  }

  static constexpr plan::PlacementShares kPlacement{0.5, 0, 0, 0};
  const DurableRun run_{{.layers = 2, .tokens = 16, .micro_batches = 1}, 8};
  const Directory where_{"/dev/shm"};
  std::vector<sys::Piece> pieces_;
  std::mt19937 random_{3};
};

TEST_F(Fault, WhatIsOnlyInterruptedOrCutShortIsDoneAgain) {
  for (int round = 0; round < 8; ++round) {
    const auto faults = std::make_shared<sys::Faults>();
    for (const auto operation : {Operation::read, Operation::write}) {
      faults->fail(operation, any(operation), EINTR, 2);
      faults->fail(operation, any(operation), EAGAIN, 2);
      faults->shorten(operation, any(operation), 4096, 2);
    }
    faults->fail(Operation::sync, 0, EINTR, 2);
    const auto outcome = live(1, faults);
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.ended, run_.steps());
    expect_intact(1, outcome, text("round ", round));
    ASSERT_FALSE(HasFailure());
  }
}

TEST_F(Fault, AFailedDriveEndsTheRunAndTheLastGoodStepStands) {
  int stopped = 0;
  for (const auto operation : {Operation::read, Operation::write, Operation::sync}) {
    for (const int number : {EIO, ENOSPC}) {
      for (int round = 0; round < 4; ++round) {
        const auto faults = std::make_shared<sys::Faults>();
        const auto at = any(operation);
        faults->fail(operation, at, number, 1'000'000);
        const auto what = text("operation ", static_cast<int>(operation), " at ", at, ": errno ", number);
        const auto outcome = live(1, faults);
        if (!outcome.error.empty()) {
          ++stopped;
          EXPECT_NE(outcome.error.find("spillway.volume"), std::string::npos) << what << ": " << outcome.error;
        }
        expect_intact(1, outcome, what);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
  EXPECT_GT(stopped, 12);
}

/// Without a journal nothing is released but by later writes: what the other paths have no room for must not wait.
TEST_F(Fault, WithoutAJournalTheOtherPathsHoldTheRunOrItEndsWithWhatTheyLack) {
  for (const std::size_t paths : {2U, 3U}) {  // of three, any two have room for all
    for (const std::uint64_t from : {0U, 1U, 3U}) {
      const auto what = text(paths, " paths, from after step ", from);
      const auto faults = std::make_shared<sys::Faults>();
      auto settings = DurableRun::settings(where_.path(), paths, kPlacement, plan::Durability::none);
      settings.storage.overwrite = true;
      std::size_t rings = 0;  // the last path's fails
      use_ring(settings, [&](const sys::File& file, unsigned depth) {
        return ++rings % paths == 0 ? sys::faulty(sys::make_ring, faults)(file, depth) : sys::make_ring(file, depth);
      });
      const auto break_path = [&](std::uint64_t step) {
        if (step != from) return;
        for (Bytes at = 0; at < 512 * MiB; at += 4096) faults->fail(Operation::write, at, EIO, 1'000'000);
      };
      Engine engine(run_.description(), settings);
      engine.start();
      std::optional<Error> error;
      try {
        break_path(0);
        run_.fill(engine);
        run_.train(engine, 1, run_.steps(), break_path);
        EXPECT_TRUE(run_.holds(engine, run_.steps())) << what;
      } catch (const Error& failed) {
        error = failed;
      }
      const auto outages = engine.counters().outages.value();
      const auto reason = text("path:", paths - 1, " gets no more writes");
      EXPECT_TRUE(std::ranges::any_of(outages, [&](const auto& it) {
        return it.reason.find(reason) != std::string::npos;
      })) << what;
      ASSERT_EQ(error.has_value(), paths == 2) << what << (error ? text(": ", error->what()) : "");
      if (!error) continue;
      EXPECT_EQ(error->code(), ErrorCode::io) << what;
      EXPECT_EQ(error->errno_value(), EIO) << what;
      for (const char* part : {"more are lacking", "path:1 gets no more writes", "Give another storage directory"}) {
        EXPECT_NE(std::string_view(error->what()).find(part), std::string_view::npos) << what << ": " << error->what();
      }
    }
  }
}

TEST_F(Fault, APathThatTakesNoMoreWritesIsLeftOutAndTheRunGoesOn) {
  for (int round = 0; round < 6; ++round) {
    const auto faults = std::make_shared<sys::Faults>();
    auto settings = DurableRun::settings(where_.path(), 2, kPlacement);
    settings.storage.overwrite = true;
    int rings = 0;  // the second path's fails
    use_ring(settings, [&](const sys::File& file, unsigned depth) {
      return rings++ % 2 == 0 ? sys::make_ring(file, depth) : sys::faulty(sys::make_ring, faults)(file, depth);
    });
    // From some step on, whatever it is given to write.
    std::uint64_t ended = 0;
    {
      Engine engine(run_.description(), settings);
      engine.start();
      run_.fill(engine);
      run_.train(engine, 1, run_.steps(), [&](std::uint64_t step) {
        ended = step;
        if (step != static_cast<std::uint64_t>(round) + 1) return;
        for (Bytes at = 0; at < 512 * MiB; at += 4096) faults->fail(Operation::write, at, EIO, 1'000'000);
      });
      EXPECT_EQ(ended, run_.steps());
      EXPECT_TRUE(run_.holds(engine, run_.steps()));
      EXPECT_FALSE(engine.counters().outages.value().empty()) << "nothing was left out";
      engine.close();
    }
    expect_intact(2, {run_.steps(), ""}, text("round ", round));
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace spillway
