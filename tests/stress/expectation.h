// What must be true of a run, whatever was done to it: which steps may be found on its paths, and with which bits.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/stress/message.h"
#include "tests/stress/truth.h"

namespace spillway::stress {

/// Of one run. Is told what its processes tell, in that order.
class Expectation {
 public:
  Expectation(const Scenario& scenario, std::uint64_t seed) : scenario_(scenario), truth_(scenario, seed) {}

  /// The process may begin to work; what it finds may be what is there, or what `opening` brings.
  void begins(std::uint64_t process, std::uint64_t line, Opening opening, std::optional<Place> checkpoint);
  void hears(const Message& message);

  /// The first thing that was not as it must be; empty: nothing.
  [[nodiscard]] const std::string& wrong() const { return wrong_; }
  /// Whether a step must be found.
  [[nodiscard]] bool holds_something() const { return !nothing_; }
  /// A process died while it began anew: volumes of two runs may lie side by side, or checkpoints of the one before.
  [[nodiscard]] bool is_mixed() const { return mixed_; }
  void forgive_damage() { damage_forgiven_ = true; }

 private:
  struct Range {
    std::uint64_t line = 0, from = 0, to = 0;
  };
  struct Known {
    std::uint64_t line = 0;
    Opening opening = Opening::go_on;
    std::optional<Place> checkpoint;
    bool closing = false;
  };

  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  [[nodiscard]] std::string allowed() const;
  [[nodiscard]] bool is_allowed(Place place) const;
  void opened(const Known& process, std::optional<Place> found);
  void commits(const Known& process, std::uint64_t step);
  void durable(const Known& process, std::uint64_t step);
  void saves(const Known& process, std::uint64_t step, bool done);
  void look(const Known& process, std::uint64_t step, std::uint64_t hash);

  const Scenario scenario_;
  Truth truth_;
  std::map<std::uint64_t, Known> processes_;
  std::uint64_t owner_ = 0;  ///< the process that opened the volumes last
  bool nothing_ = true;      ///< it may be that no step is found
  bool mixed_ = false;
  bool damage_forgiven_ = false;
  std::vector<Range> steps_;  ///< that may be found
  std::string wrong_;
};

}  // namespace spillway::stress
