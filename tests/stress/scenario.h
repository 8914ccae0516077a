// What a round of the stress driver is about, all of it drawn from a seed: a model, the paths it is trained on, and the
// processes that train it one after the other, or two at once. A process draws its own part again from the same seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <random>
#include <string>

#include "spillway/engine.h"
#include "tests/plan/models.h"

namespace spillway::stress {

using Random = std::mt19937_64;

/// One in `n`.
inline bool one_in(Random& random, std::uint64_t n) {
  return random() % n == 0;
}

/// A model and the run that trains it.
struct Scenario {
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

/// One process.
struct Life {
  Opening opening = Opening::go_on;
  Ending ending = Ending::closed;
  std::uint64_t event = 0;           ///< of `ending`
  std::optional<double> kill_after;  ///< by the parent: a share of what a life takes
  std::uint64_t steps = 0;           ///< that it takes at most
  std::optional<Outage> outage;
  std::uint64_t interrupt_one_in = 0;  ///< of the pieces is only interrupted, or moved in part; 0: none
  bool threads_move = false;           ///< bytes are moved by threads, not by io_uring
  bool device = false;
  std::uint64_t look_one_in = 4;  ///< after so many steps all weights are compared
  std::uint64_t save_one_in = 4, flush_one_in = 6, evaluate_one_in = 8;
  std::uint64_t seed = 0;  ///< of what the process draws while it works

  [[nodiscard]] std::string words() const;
  /// Whether the process may fail for what its drives do.
  [[nodiscard]] bool may_fail() const { return outage.has_value() || ending == Ending::power_cut; }
};
[[nodiscard]] Life draw_life(const Scenario& scenario, std::uint64_t seed, std::uint64_t round, std::uint64_t life);

/// Placement, memory, devices, nodes and threads of that life, on directories below `where`, which are made.
[[nodiscard]] Settings draw_settings(const Scenario& scenario, const Life& life, const std::filesystem::path& where);

}  // namespace spillway::stress
