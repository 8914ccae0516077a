// A ring that injects faults, for tests of what uses rings.
//
// `Faults` is the test's side: it scripts what goes wrong, opens and closes a gate that completions wait behind, and
// sees the pieces in the order they were submitted. It outlives the ring and is safe to use from any thread. It serves
// one ring at a time, since completions come back by their tags alone.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "spillway/base/mutex.h"
#include "spillway/sys/ring.h"

namespace spillway::sys {

class Faults {
 public:
  /// The next `times` pieces of that kind at that file offset complete with `-errno_value`, nothing moved. Of syncs the
  /// offset is not looked at.
  void fail(Operation operation, Bytes offset, int errno_value, unsigned times = 1);
  /// The next such piece moves at most `bytes` of what it was asked to; 0: it moves nothing, as at the end of a file.
  void shorten(Operation operation, Bytes offset, std::uint32_t bytes, unsigned times = 1);
  /// Memory is not registered, for that reason.
  void refuse_registration(std::string reason);
  /// The ring's next wait throws Error(io), as when the kernel refuses the ring itself.
  void break_ring();

  enum class Order { kept, reversed };
  /// Closes the gate: what completes from now on is late.
  void hold();
  /// Opens it: what has waited comes out in the order of completion, or the other way round.
  void release(Order order = Order::kept);
  /// Lets the `count` longest held through and keeps the gate closed for the others.
  void pass(std::size_t count);
  /// Waits until `count` pieces have been submitted since the beginning.
  void await_submitted(std::size_t count);
  /// Waits until `count` completions stand behind the closed gate.
  void await_held(std::size_t count);
  /// Every piece so far, first submitted first.
  [[nodiscard]] std::vector<Piece> submitted() const;

 private:
  friend class FaultyRing;
  struct Rule {
    Operation operation;
    Bytes offset;
    int errno_value;      ///< 0: a short transfer
    std::uint32_t bytes;  ///< of a short transfer
    unsigned times;
  };
  [[nodiscard]] std::optional<Rule> take_rule(const Piece& piece) SPILLWAY_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Condition changed_;  ///< something was submitted or held
  std::vector<Rule> rules_ SPILLWAY_GUARDED_BY(mutex_);
  std::vector<Piece> submitted_ SPILLWAY_GUARDED_BY(mutex_);
  std::vector<Completion> ended_ SPILLWAY_GUARDED_BY(mutex_);  ///< completed inside, not yet handed out
  std::string registration_refusal_ SPILLWAY_GUARDED_BY(mutex_);
  bool held_ SPILLWAY_GUARDED_BY(mutex_) = false;
  std::size_t passes_ SPILLWAY_GUARDED_BY(mutex_) = 0;  ///< completions that may still go through the closed gate
  bool broken_ SPILLWAY_GUARDED_BY(mutex_) = false;
  std::function<void()> wake_ SPILLWAY_GUARDED_BY(mutex_);  ///< wakes the ring; empty while there is none
};

/// A factory of rings that `inner` makes and `faults` spoils. Without a script the fake behaves as the inner ring.
/// The factory throws Error(internal) while there is another ring with these faults.
[[nodiscard]] RingFactory faulty(RingFactory inner, std::shared_ptr<Faults> faults);

}  // namespace spillway::sys
