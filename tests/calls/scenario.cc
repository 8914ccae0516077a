#include "tests/calls/scenario.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "spillway/base/error.h"
#include "spillway/engine_testing.h"

namespace spillway::calls {

namespace fs = std::filesystem;
using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

namespace {

constexpr std::uint64_t kLast = 5;  ///< step of the reference
constexpr std::uint64_t kOld = 2;   ///< step that most scenarios begin with
constexpr std::uint64_t kNew = 4;   ///< step that they end with when they train

constexpr plan::PlacementShares kMixed{0.5, 0, 0, 0};  ///< half of the weights in memory, all else on the paths
constexpr plan::PlacementShares kMemory{1, 1, 1, 1};   ///< snapshots and gradients alone go to the paths
constexpr plan::PlacementShares kPaths{0, 0, 0, 0};

bool trains(Scenario scenario) {
  return scenario == Scenario::create || scenario == Scenario::reopen || scenario == Scenario::recover ||
         scenario == Scenario::grow || scenario == Scenario::checkpoint;
}

fs::path kept(const Stage& stage) {
  return stage.where / "kept";
}
/// Until it is whole.
fs::path drafted(const Stage& stage) {
  return stage.where / "drafted";
}
fs::path saved(const Stage& stage) {
  return stage.where / "saved";
}

std::vector<fs::path> manifests(const Stage& stage) {
  return fs::exists(kept(stage) / "manifest.bin") ? std::vector{kept(stage)} : std::vector<fs::path>{};
}

}  // namespace

std::string name_of(Scenario scenario) {
  static constexpr const char* kNames[] = {"create",     "refuse", "reopen", "recover", "grow",
                                           "checkpoint", "save",   "export", "verify",  "remove"};
  return kNames[static_cast<std::size_t>(scenario)];
}

Scenes::Scenes()
    : run_({.layers = 1,
            .hidden = 32,
            .ffn = 48,
            .vocabulary = 100,
            .tokens = 16,
            .micro_batches = 1,
            .chunk_elements = 1U << 16},
           kLast) {}

Settings Scenes::settings(Scenario scenario, const Stage& stage, bool before) const {
  const bool small = scenario == Scenario::recover || (scenario == Scenario::grow && before);
  auto out = test::DurableRun::settings(stage.where, stage.paths,
                                        small                        ? kMemory
                                        : scenario == Scenario::grow ? kPaths
                                                                     : kMixed);
  out.budget.checkpoints = 1;
  use_ring(out, stage.ring);
  return out;
}

void Scenes::train(Engine& engine, std::uint64_t first, std::uint64_t last, Told& told) const {
  told.begun = std::max(told.begun.load(), first);
  run_.train(engine, first, last, [&](std::uint64_t step) {
    // A step's commit waits for the one before.
    if (step > first) told.durable = step - 1;
    told.begun = std::min(step + 1, last);
  });
  engine.flush();
  told.durable = last;
}

void Scenes::save(Engine& engine, const Stage& stage, Told& told) const {
  engine.save_weights(saved(stage), 16 * KiB);
  engine.save_state(saved(stage));
  told.saved = true;
}

/// What cannot be read is damage.
void Scenes::verify(const Engine& engine) {
  const auto found = engine.verify({});
  if (!found.damage.empty()) throw Error(ErrorCode::corrupt, found.damage.front().what);
}

void Scenes::prepare(Scenario scenario, const Stage& stage) const {
  for (const auto& entry : fs::directory_iterator(stage.where)) fs::remove_all(entry.path());
  if (scenario == Scenario::create) return;
  if (scenario == Scenario::save || scenario == Scenario::export_) fs::create_directory(saved(stage));
  const auto live = [&] {
    Engine engine(run_.description(), settings(scenario, stage, true));
    engine.start();
    run_.fill(engine);
    run_.train(engine, 1, kOld);
    if (scenario == Scenario::recover) {
      engine.flush();
      ::_exit(0);  // as one that was killed
    }
    engine.close();
  };
  if (scenario != Scenario::recover) return live();
  const auto child = ::fork();
  if (child == 0) live();
  int status = 0;
  ::waitpid(child, &status, 0);
}

void Scenes::play(Scenario scenario, const Stage& stage, const Settings& settings, const std::function<void()>& planned,
                  Told& told) const {
  Engine engine(run_.description(), settings);
  planned();
  switch (scenario) {
    case Scenario::create:
      engine.start();
      told.started = true;
      run_.fill(engine);
      train(engine, 1, kOld, told);
      return engine.close();
    case Scenario::refuse:
      try {
        engine.start();
      } catch (const Error& error) {
        if (error.code() == ErrorCode::bad_input) return;
        throw;
      }
      throw std::logic_error("it was not refused");
    case Scenario::reopen:
    case Scenario::recover:
    case Scenario::grow: {
      const auto found = engine.start({.reopen = true});
      if (!found.has_step || found.step != kOld) throw std::logic_error("the old step was not found");
      train(engine, kOld + 1, kNew, told);
      return engine.close();
    }
    case Scenario::checkpoint:
      engine.start({.reopen = true});
      fs::create_directory(drafted(stage));
      engine.save_manifest(drafted(stage));
      fs::rename(drafted(stage), kept(stage));
      told.kept = true;
      train(engine, kOld + 1, kNew, told);
      engine.close();
      engine.start({.reopen = true, .checkpoint = kept(stage), .pinned = [&] { return manifests(stage); }});
      told.begun = kOld;
      told.durable = 0;  // it went back
      train(engine, kOld + 1, kNew, told);
      return engine.close();
    case Scenario::save:
      engine.start({.reopen = true});
      save(engine, stage, told);
      return engine.close();
    case Scenario::export_:
      engine.read_back({});
      return save(engine, stage, told);
    case Scenario::verify:
      verify(engine);
      return;
    case Scenario::remove:
      engine.start({.reopen = true});
      told.gone = true;
      engine.give_up_volumes();
      return engine.close();
  }
}

AssertionResult Scenes::whole(Scenario scenario, const Stage& stage, const Told& told, bool done) const {
  try {
    if (told.saved) {
      if (auto result = loads(saved(stage)); !result) return result << " of what was saved";
    } else if (done && (scenario == Scenario::save || scenario == Scenario::export_)) {
      return AssertionFailure() << "it ended well without having saved";
    }
    if (told.kept) {
      if (auto result = goes_back(stage); !result) return result << " of the checkpoint";
    }
    const bool refused = told.words.front() != '\0' && !told.started;
    if (scenario == Scenario::create && refused && in_the_way(stage)) {
      return AssertionFailure() << "a volume is left of a run that did not begin";
    }
    return goes_on(scenario, stage, told, done);
  } catch (const std::exception& error) {
    return AssertionFailure() << "what it left is refused: " << error.what();
  }
}

/// The save, in an engine of its own in memory.
AssertionResult Scenes::loads(const fs::path& directory) const {
  Settings in_memory;
  in_memory.budget.dram = 2 * GiB;
  Engine engine(run_.description(), in_memory);
  engine.start();
  engine.load_state(directory, directory, kOld);
  return run_.holds(engine, kOld);
}

/// What the manifest names, read without going back to it.
AssertionResult Scenes::goes_back(const Stage& stage) const {
  Engine engine(run_.description(), settings(Scenario::reopen, stage));
  const auto found = engine.read_back(kept(stage));
  if (found.step != kOld) return AssertionFailure() << "it is of step " << found.step;
  return run_.holds(engine, kOld);
}

/// Volumes of a run that was not begun would keep other runs from their paths.
bool Scenes::in_the_way(const Stage& stage) {
  return std::ranges::any_of(fs::recursive_directory_iterator(stage.where),
                             [](const auto& entry) { return entry.path().filename() == "spillway.volume"; });
}

/// What is left of volumes that are being removed, one after the other, is given up.
bool Scenes::partly_gone(const Stage& stage) {
  std::size_t there = 0;
  for (std::size_t p = 0; p < stage.paths; ++p)
    there += fs::exists(stage.where / std::to_string(p) / "spillway.volume");
  return there > 0 && there < stage.paths;
}

AssertionResult Scenes::goes_on(Scenario scenario, const Stage& stage, const Told& told, bool done) const {
  const auto oldest = scenario == Scenario::create || told.gone ? 0 : kOld;
  const auto least = std::max<std::uint64_t>(oldest, told.durable);
  const auto most = std::max({least, std::uint64_t{oldest}, told.begun.load(), told.gone ? kOld : 0});
  auto again = settings(scenario, stage);
  again.hooks = nullptr;
  const bool anew = told.gone && partly_gone(stage);
  again.storage.overwrite = anew;
  Engine engine(run_.description(), again);
  const auto found = engine.start({.reopen = !anew, .pinned = [&] { return manifests(stage); }});
  const auto step = found.has_step ? found.step : 0;
  if (scenario == Scenario::checkpoint ? step < kOld || step > kNew : step < least || step > most) {
    return AssertionFailure() << "step " << step << " instead of " << least << " to " << most;
  }
  const auto end = scenario == Scenario::create ? kOld : kNew;
  if (done && trains(scenario) && step != end) return AssertionFailure() << "it ended well at step " << step;
  if (!found.has_step) run_.fill(engine);
  if (auto result = run_.holds(engine, step); !result) return result;
  run_.train(engine, step + 1, kLast);
  if (auto result = run_.holds(engine, kLast); !result) return result << " after going on";
  engine.close();
  return AssertionSuccess();
}

}  // namespace spillway::calls
