// SIGKILL: at every named point on the way from gradients to a durable commit, and at instants that nobody chose. The
// run that goes on ends bit by bit as the one that was never interrupted.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <thread>

#include "spillway/engine_testing.h"
#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/contract/fake_nodes.h"
#include "tests/contract/killing_ring.h"
#include "tests/contract/on_device.h"
#include "tests/nightly.h"

namespace spillway {
namespace {

using test::Death;
using test::Directory;
using test::DurableRun;
using test::Fate;

/// 200 in `make nightly`; SPILLWAY_KILLS=n: so many.
int kills(int few) {
  const auto* asked = std::getenv("SPILLWAY_KILLS");
  return asked == nullptr ? testing::few_or(few, 200) : std::max(1, std::atoi(asked));
}

/// Of instants; the clock adds its own chance.
unsigned seed() {
  const auto* asked = std::getenv("SPILLWAY_SEED");
  return asked == nullptr ? 2 : static_cast<unsigned>(std::strtoul(asked, nullptr, 10));
}

class Kill : public ::testing::Test {
 protected:
  explicit Kill(state::StateFormat format = state::StateFormat::exact, std::optional<StepUpdate> update = {},
                const std::string& frozen = {}, const std::string& subspace = {}, bool published = false)
      : Kill({.layers = 2,
              .tokens = 16,
              .micro_batches = 1,
              .format = format,
              .frozen = frozen,
              .subspace = subspace,
              .published = published},
             update) {}
  explicit Kill(const plan::test::Shape& shape, const std::optional<StepUpdate>& update = {})
      : run_(shape, 10, update) {}

  [[nodiscard]] Settings settings(const plan::PlacementShares& placement) const {
    return DurableRun::settings(where_.path(), 2, placement);
  }

  /// Of blocks such parts live on a device, and of the others such parts pass through it.
  [[nodiscard]] Settings with_device(const plan::PlacementShares& placement, double state, double updated) const {
    auto out = settings(placement);
    out.budget.device = test::tier(state, updated, 0.5);
    test::delay_copies(out, 3);
    return out;
  }

  [[nodiscard]] std::shared_ptr<Fate> fate(const Death& death) const {
    const auto layout = run_.description().layout();
    return std::shared_ptr<Fate>(new Fate{test::Points(run_.description(), layout, "a run", 2), death, {}});
  }

  /// Starts or goes on until the last step; in a process of its own, which dies as `death` says. A byte for every step
  /// that ended comes over `pipe`.
  void live(Settings settings, const Death& death, int pipe) const {
    use_ring(settings, test::killing(sys::make_ring, fate(death)));
    Engine engine(run_.description(), settings);
    const auto found = engine.start({.reopen = started_});
    if (!found.has_step) run_.fill(engine);
    run_.train(engine, found.step + 1, run_.steps(), [&](std::uint64_t step) {
      const auto byte = static_cast<char>(step);
      if (::write(pipe, &byte, 1) != 1) ::_exit(3);
    });
    engine.close();
  }

  /// Another process does it, and `then` is called meanwhile with its number. Returns its exit status.
  template <class Then>
  int child(const Settings& settings, const Death& death, const Then& then) {
    int ends[2];
    if (::pipe(ends) != 0) return -1;
    const auto pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      try {
        live(settings, death, ends[1]);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ::_exit(2);
      }
      ::_exit(0);
    }
    ::close(ends[1]);
    then(pid);
    char byte = 0;
    while (::read(ends[0], &byte, 1) == 1) ended_ = std::max(ended_, static_cast<std::uint64_t>(byte));
    ::close(ends[0]);
    int status = 0;
    ::waitpid(pid, &status, 0);
    started_ = true;
    return status;
  }

  /// What the dead have left, with yet another placement.
  void expect_recovered() {
    auto now = settings({0.5, 0.4, 1, 0});
    now.storage.overwrite = true;
    test::use_fake_nodes(now, {1e8, 1e8, 2e8});
    Engine engine(run_.description(), now);
    const auto found = engine.start({.reopen = true});
    const auto step = found.has_step ? found.step : 0;
    ASSERT_GE(step + 1, ended_) << "a step that had ended before the last one is lost";
    if (!found.has_step) run_.fill(engine);
    ASSERT_TRUE(run_.holds(engine, step));
    run_.train(engine, step + 1, run_.steps());
    ASSERT_TRUE(run_.holds(engine, run_.steps()));
    engine.close();
  }

  [[nodiscard]] std::vector<Settings> placements() const {
    auto on_nodes = settings({1, 1, 1, 1});
    test::use_fake_nodes(on_nodes, {4e8, 1e8});
    return {settings({0, 0, 0, 0}), settings({1, 1, 1, 1}), settings({1, 0, 1, 1}), settings({0, 1, 0, 1}), on_nodes};
  }

  /// Microseconds that a run of these settings takes when nobody kills it.
  std::int64_t whole_life(Settings settings) {
    settings.storage.overwrite = true;
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(child(settings, {}, [](pid_t) {}), 0);
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - began).count();
  }

  /// Kills runs of these settings, and kills them again while they recover or go on.
  void kill_at_any_instant(std::span<const Settings> all, int rounds) {
    const auto chosen = seed();
    SCOPED_TRACE(text("SPILLWAY_SEED=", chosen));
    std::mt19937 random(chosen);
    int deaths = 0;
    auto whole = whole_life(all[0]) * 5 / 4;
    for (int round = 0; round < rounds; ++round) {
      started_ = false;
      ended_ = 0;
      for (int life = 0; life < 2; ++life) {
        auto now = all[random() % all.size()];
        now.storage.overwrite =
            true;  // of the round before, of which a death may leave some: asked for until it is gone
        const std::chrono::microseconds instant(static_cast<std::int64_t>(random()) % whole);
        const auto status = child(now, {}, [&](pid_t pid) {
          std::this_thread::sleep_for(instant);
          ::kill(pid, SIGKILL);
        });
        deaths += WIFSIGNALED(status) ? 1 : 0;
        // A machine with more or less to do than at first: a third or so of the instants is to come after the end.
        whole = WIFSIGNALED(status) ? whole * 9 / 8 : std::max<std::int64_t>(whole * 3 / 4, 1000);
        ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0)
            << status << " round " << round << " life " << life << " after " << instant.count() << " us";
      }
      expect_recovered();
      ASSERT_FALSE(HasFailure()) << "round " << round;
    }
    EXPECT_GT(deaths, 0);
  }

  const DurableRun run_;
  const Directory where_{"/dev/shm"};
  bool started_ = false;     ///< a process has made the volumes, perhaps
  std::uint64_t ended_ = 0;  ///< the last step that a process said had ended
};

class KillAt : public Kill, public ::testing::WithParamInterface<std::tuple<test::Point, bool>> {};

TEST_P(KillAt, APointOfTheCommitPath) {
  const auto [point, after] = GetParam();
  const auto whole = fate({});
  auto counting = settings({0, 0, 0, 0});
  use_ring(counting, test::killing(sys::make_ring, whole));
  {
    Engine engine(run_.description(), counting);
    engine.start();
    run_.fill(engine);
    run_.train(engine, 1, run_.steps());
    engine.close();
  }
  const auto times = whole->seen[static_cast<std::size_t>(point) * 2 + (after ? 1 : 0)].load();
  ASSERT_GT(times, run_.steps());
  std::mt19937 random(static_cast<unsigned>(point));
  for (int round = 0; round < kills(2); ++round) {
    started_ = false;
    ended_ = 0;
    const Death death{.point = point, .after = after, .count = 1 + random() % times};
    auto first = settings({0, 0, 0, 0});
    first.storage.overwrite = true;
    const auto status = child(first, death, [](pid_t) {});
    // The number of records and flushes is not the same in every run: some end before their turn.
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << status;
    expect_recovered();
    ASSERT_FALSE(HasFailure()) << "killed " << (after ? "after " : "before ") << test::name_of(point) << " "
                               << death.count << " of " << times;
  }
}

INSTANTIATE_TEST_SUITE_P(Points, KillAt, ::testing::Combine(::testing::ValuesIn(test::kPoints), ::testing::Bool()),
                         [](const auto& test) {
                           return (std::get<1>(test.param) ? "After_" : "Before_") +
                                  test::name_of(std::get<0>(test.param));
                         });

/// Chunks in memory are updated during backward: what dies with the process is done again from snapshot and gradients.
class KillEarly : public Kill {
 protected:
  KillEarly() : Kill(state::StateFormat::exact, StepUpdate{.learning_rate = 1e-2, .weight_decay = 0.1}) {}

  [[nodiscard]] Settings early(const plan::PlacementShares& placement) const {
    auto out = settings(placement);
    out.budget.update_schedule = plan::Updates::early;
    out.budget.clipping = false;
    return out;
  }
};

TEST_F(KillEarly, AtAnyInstant) {
  auto on_nodes = early({1, 1, 1, 1});
  test::use_fake_nodes(on_nodes, {2e8, 1e8});
  const std::array all = {early({1, 1, 1, 1}), early({1, 1, 0, 1}), early({0.6, 0.6, 0.5, 0}), on_nodes};
  for (const auto& it : all) ASSERT_GT(Engine(run_.description(), it).plan().early_chunks, 0U);
  kill_at_any_instant(all, kills(8));
}

TEST_F(Kill, AtAnyInstant) {
  kill_at_any_instant(placements(), kills(12));
}

/// Where updates are on a device, whatever is there dies with the process.
TEST_F(Kill, WithADeviceAtAnyInstant) {
  const std::array all = {with_device({1, 1, 1, 1}, 0, 1), with_device({0, 0, 0, 0}, 0, 1),
                          with_device({1, 0.5, 0, 1}, 0.5, 1), with_device({1, 1, 1, 1}, 1, 0)};
  kill_at_any_instant(all, kills(8));
}

/// What is frozen is durable from the start, and no later step writes it.
class KillFrozen : public Kill {
 protected:
  KillFrozen() : Kill(state::StateFormat::exact, std::nullopt, "up|down|embed") {}
};

TEST_F(KillFrozen, AtAnyInstant) {
  kill_at_any_instant(placements(), kills(8));
}

/// Experts in memory swap places with others every second step. A run that goes on begins with those of its plan.
class KillExperts : public Kill {
 protected:
  KillExperts()
      : Kill({.layers = 2, .tokens = 16, .micro_batches = 1, .frozen = "up|down", .experts = 6, .asked = 0.5}) {}
};

TEST_F(KillExperts, AtAnyInstant) {
  std::array all = {settings({0.5, 0.5, 1, 1}), settings({0.5, 0, 0, 0}), with_device({0.5, 0, 1, 1}, 0, 0)};
  all[2].budget.device->weight = 0.3;
  for (auto& it : all) it.piece_period = 2;
  kill_at_any_instant(all, kills(4));
}

/// Projectors and the moments inside go with the snapshot; what a step has refitted, with its gradient.
class KillSubspace : public Kill {
 protected:
  KillSubspace() : Kill(state::StateFormat::exact, std::nullopt, "embed", "up|down") {}
};

TEST_F(KillSubspace, AtAnyInstant) {
  kill_at_any_instant(placements(), kills(8));
}

TEST_F(KillSubspace, WithADeviceAtAnyInstant) {
  const std::array all = {with_device({1, 1, 1, 1}, 1, 0), with_device({0, 0, 0, 0}, 0.5, 1),
                          with_device({1, 0.5, 0, 1}, 0, 1)};
  kill_at_any_instant(all, kills(8));
}

class KillPublished : public Kill {
 protected:
  KillPublished() : Kill(state::StateFormat::exact, std::nullopt, "embed", "up|down", true) {}
};

TEST_F(KillPublished, AtAnyInstant) {
  kill_at_any_instant(placements(), kills(4));
}

class KillOfFormat : public Kill, public ::testing::WithParamInterface<state::StateFormat> {
 protected:
  KillOfFormat() : Kill(GetParam()) {}
};

TEST_P(KillOfFormat, AtAnyInstant) {
  kill_at_any_instant(placements(), kills(4));
}

INSTANTIATE_TEST_SUITE_P(Formats, KillOfFormat, ::testing::Values(state::StateFormat::bf16, state::StateFormat::int8),
                         [](const auto& test) { return std::string(state::name_of(test.param)); });

}  // namespace
}  // namespace spillway
