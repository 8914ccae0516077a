// What a round of the stress driver is about, all of it drawn from a seed: a model, the paths it is trained on, and the
// processes that train it one after the other, or two at once. A process draws its own part again from the same seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <random>
#include <string>

#include "spillway/engine.h"
#include "spillway/sys/lying_ring.h"
#include "tests/plan/models.h"

namespace spillway::stress {

using Random = std::mt19937_64;

/// One in `n`.
inline bool one_in(Random& random, std::uint64_t n) {
  return random() % n == 0;
}

/// What may happen in a round. Each is drawn by itself: where much may happen at once, some of it is always in the way
/// of the rest.
struct Swarm {
  bool kills = true, power_cuts = true, outages = true, interruptions = true;
  bool pairs = true;    ///< two processes at once
  bool devices = true;  ///< compute devices with memory of their own
  bool returns = true;  ///< processes that go back to a checkpoint, or begin anew
  bool reads = true;    ///< processes that verify, or read a step
  // Drives that lie. What was told to be durable may be gone afterwards; no bit may be another one.
  bool false_writes = false;     ///< that are lost, misdirected or late
  bool false_reads = false;      ///< that give other bytes than those of their place
  bool false_flushes = false;    ///< that make nothing durable
  bool old_volumes = false;      ///< images of before that are put back, of one path or of all
  bool old_checkpoints = false;  ///< the same of the directories of checkpoints
  bool old_superblocks = false;  ///< one copy of a superblock is that of an image of before
  [[nodiscard]] bool lies() const {
    return false_writes || false_reads || false_flushes || old_volumes || old_checkpoints || old_superblocks;
  }
  [[nodiscard]] std::string words() const;
};

/// A model and the run that trains it.
struct Scenario {
  Swarm swarm;
  plan::test::Shape shape;
  StepUpdate update;
  plan::Durability durability = plan::Durability::step;
  std::size_t paths = 1;
  std::uint64_t steps = 12;
  bool in_memory = true;  ///< the volumes lie on /dev/shm, else on the disk that temporary files lie on

  [[nodiscard]] std::string words() const;
};
/// The model is one that the engine takes.
[[nodiscard]] Scenario draw_scenario(std::uint64_t seed, std::uint64_t round);

/// What a step does, of the run that began or went on as number `line`: every process of a run takes other steps.
struct StepDraw {
  std::uint64_t inputs = 0;  ///< Toy::step()'s seed
  bool poisoned = false;     ///< its gradient is not finite
  StepUpdate update;
};
[[nodiscard]] StepDraw draw_step(const Scenario& scenario, std::uint64_t seed, std::uint64_t line, std::uint64_t step);

enum class Opening : std::uint8_t {
  go_on,   ///< from the newest durable step, or begin where there is none
  anew,    ///< in place of what is there
  back,    ///< to a checkpoint
  verify,  ///< reads every byte
  read,    ///< the newest durable step, or a checkpoint, is written as one that stands alone
};
[[nodiscard]] const char* name_of(Opening opening);

/// How a process ends that its parent does not kill.
enum class Ending : std::uint8_t {
  closed,     ///< it closes the engine
  killed,     ///< SIGKILL when a ring has seen so many events
  power_cut,  ///< after so many events nothing reaches a drive, and what no flush has covered may be lost
};

/// What the drive of one path does wrong.
struct Outage {
  std::size_t path = 0;
  sys::Operation operation = sys::Operation::write;
  std::uint64_t from = 0;  ///< the number of that operation from which on each fails
  int error = 0;
};

/// Parts of a volume's file.
enum class Part : std::uint8_t { commits, records, metadata, data, all };

/// What the drive of one path, or every drive, lies about.
struct Deceit {
  sys::Lie lie = sys::Lie::lost;
  sys::Operation operation = sys::Operation::write;
  Part part = Part::all;
  std::optional<std::size_t> path;  ///< none: of every path
  std::uint64_t skip = 0, times = 1;
  std::uint64_t distance = 0;  ///< misdirected: slots of 4 KiB; late: pieces
};

/// One process.
struct Life {
  Opening opening = Opening::go_on;
  Ending ending = Ending::closed;
  std::uint64_t event = 0;           ///< of `ending`
  std::optional<double> kill_after;  ///< by the parent: a share of what a life takes
  std::uint64_t steps = 0;           ///< that it takes at most
  std::optional<Outage> outage;
  std::optional<Deceit> deceit;
  std::optional<std::uint64_t> first_false_flush;  ///< with `power_cut`: syncs from this one on make nothing durable
  std::uint64_t interrupt_one_in = 0;              ///< of the pieces is only interrupted, or moved in part; 0: none
  bool threads_move = false;                       ///< bytes are moved by threads, not by io_uring
  bool device = false;
  std::uint64_t look_one_in = 4;  ///< after so many steps all weights are compared
  std::uint64_t save_one_in = 4, flush_one_in = 6, evaluate_one_in = 8;
  std::uint64_t seed = 0;  ///< of what the process draws while it works

  [[nodiscard]] std::string words() const;
  /// Whether the process may fail for what its drives do.
  [[nodiscard]] bool may_fail() const { return outage.has_value() || ending == Ending::power_cut; }
  /// Whether what it was told of its drives may be wrong.
  [[nodiscard]] bool is_deceived() const { return deceit.has_value() || first_false_flush.has_value(); }
};
[[nodiscard]] Life draw_life(const Scenario& scenario, std::uint64_t seed, std::uint64_t round, std::uint64_t life);

/// Placement, memory, devices, nodes and threads of that life, on directories below `where`, which are made.
[[nodiscard]] Settings draw_settings(const Scenario& scenario, const Life& life, const std::filesystem::path& where);

}  // namespace spillway::stress
