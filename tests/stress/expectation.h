// What must be true of a run, whatever was done to it: which steps may be found on its paths, and with which bits.
#pragma once

#include <cstdint>
#include <map>
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
  void ended(std::uint64_t process) { processes_.at(process).ended = true; }

  /// The first thing that was not as it must be; empty: nothing.
  [[nodiscard]] const std::string& wrong() const { return wrong_; }
  /// Whether a step must be found.
  [[nodiscard]] bool holds_something() const { return !nothing_; }
  /// A process may have died while it began anew: volumes of two runs may lie side by side, or checkpoints of the one
  /// before. Another process's commits say nothing of that: it may have had the volumes before, and lost them to it.
  [[nodiscard]] bool is_mixed() const { return !beginning_.empty(); }
  void forgive_damage() { damage_forgiven_ = true; }
  /// Drives lied, or an image of before was put back: from now on any step of any line may be found, or none, or the
  /// run may be refused, until a process begins anew on drives that are honest. Bits are compared all the same.
  void distrust() { is_distrusted_ = damage_forgiven_ = true; }
  [[nodiscard]] bool is_distrusted() const { return is_distrusted_; }
  /// The process's drives lie.
  void deceive(std::uint64_t process) { processes_.at(process).is_deceived = true; }
  /// Times that a step was found which is none of those that honest drives would have given.
  [[nodiscard]] std::uint64_t older_steps() const { return older_steps_; }

 private:
  struct Range {
    std::uint64_t line = 0, from = 0, to = 0;
  };
  struct Known {
    std::uint64_t line = 0;
    Opening opening = Opening::go_on;
    std::optional<Place> checkpoint;
    bool ended = false;
    bool is_deceived = false;
    std::set<std::uint64_t> before;  ///< that had ended in the midst of beginning anew when this one began anew
  };

  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  [[nodiscard]] std::string allowed() const;
  [[nodiscard]] bool is_allowed(Place place) const;
  /// Whether such a step was ever to be committed.
  [[nodiscard]] bool is_known(Place place) const;
  void opened(const Known& process, std::optional<Place> found);
  void commits(std::uint64_t number, std::uint64_t step);
  void durable(const Known& process, std::uint64_t step);
  void saves(const Known& process, std::uint64_t step, bool done);
  void look(const Known& process, std::uint64_t step, std::uint64_t hash);

  const Scenario scenario_;
  Truth truth_;
  std::map<std::uint64_t, Known> processes_;
  std::uint64_t owner_ = 0;            ///< the process that opened the volumes last
  bool nothing_ = true;                ///< it may be that no step is found
  std::set<std::uint64_t> beginning_;  ///< processes that began anew, and may have died before it was done
  bool damage_forgiven_ = false;
  bool is_distrusted_ = false;
  std::uint64_t older_steps_ = 0;
  std::map<std::uint64_t, std::uint64_t> committed_;  ///< by line: the last step that was to be committed
  std::vector<Range> steps_;                          ///< that may be found
  std::string wrong_;
};

}  // namespace spillway::stress
