// One process of a run: opens its volumes, does what the seed says, and ends, is killed, or loses its power.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/stress/scenario.h"

namespace spillway::stress {

/// What the driver decides when it starts a process; the rest is drawn from the seed.
struct Order {
  std::uint64_t seed = 0, round = 0;
  std::uint64_t life = 0;  ///< its number among the processes of the round
  std::uint64_t line = 0;  ///< number of the line of steps that it begins
  std::filesystem::path where;
  std::optional<std::filesystem::path> checkpoint;  ///< to go back to, or to be read
  bool anew = false;  ///< instead of what the seed says: one before it died while it began anew
  /// Instead of what the seed says: this, with drives in order, to its end; what goes on takes all steps that are left.
  std::optional<Opening> undisturbed = std::nullopt;

  [[nodiscard]] std::vector<std::string> arguments() const;
  [[nodiscard]] Life draw(const Scenario& scenario) const;
};
[[nodiscard]] Order parse_order(const std::vector<std::string>& arguments);

/// The checkpoints of a run, oldest first: directories of the name checkpoint-LINE-STEP.
[[nodiscard]] std::vector<std::filesystem::path> checkpoints(const std::filesystem::path& where);

/// Returns the exit status: that of the `spillway` command for an error of this kind.
[[nodiscard]] int live(const Order& order);

}  // namespace spillway::stress
