// The same run, never interrupted and wholly in memory: what its weights are after each step.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tests/stress/scenario.h"

namespace spillway::stress {

/// Where a line of steps stands.
struct Place {
  std::uint64_t line = 0, step = 0;
  auto operator<=>(const Place&) const = default;
};

class Truth {
 public:
  Truth(const Scenario& scenario, std::uint64_t seed);

  /// The line begins where another one stands, or, from {}, with the first weights.
  void begin(std::uint64_t line, Place from) { origins_[line] = from; }
  [[nodiscard]] bool knows(std::uint64_t line) const { return origins_.contains(line); }
  /// Which line took that step of this one.
  [[nodiscard]] Place at(Place place) const;
  [[nodiscard]] std::uint64_t hash(Place place);

 private:
  void compute(std::uint64_t line);

  const Scenario scenario_;
  const std::uint64_t seed_;
  const plan::Description description_;
  std::map<std::uint64_t, Place> origins_;
  std::map<std::uint64_t, std::vector<std::uint64_t>> hashes_;  ///< by line, then by step
};

}  // namespace spillway::stress
