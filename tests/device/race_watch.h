// The account that the fake driver keeps of its operations: their order (happens_before.h), and edges of that order
// that a test leaves out.
//
// The environment says what becomes of a race. FAKE_CUDA_RACES=fail: the call that makes it fails, for the test to see;
// off: no account is kept; anything else: the process ends. FAKE_CUDA_DROP=wait:17 leaves out the 17th
// cuStreamWaitEvent since the variable was set, `record` a cuEventRecord, `synchronise` a cuEventSynchronize: such a
// call does nothing. Words after a second colon only make it another setting. With each setting the account starts
// anew.
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <string>

#include "tests/device/happens_before.h"

namespace spillway::device::fake {

/// Every function needs the mutex, which the driver holds until the operation is in its stream.
class RaceWatch {
 public:
  std::mutex mutex;
  HappensBefore order;

  /// Whether an operation has an order with all earlier ones. Where a race ends the process, it does not return.
  [[nodiscard]] bool allow(Participant by, const std::string& name, std::span<const Range> ranges);
  /// The host has touched what an operation may still use, in words: as a race of allow().
  void report(const std::string& race);
  /// Whether the call that comes now, a `kind` of FAKE_CUDA_DROP, is to do nothing. `event`: the clock of its event.
  [[nodiscard]] bool drops(const std::string& kind, const VectorClock& event);

  /// Calls of a kind since FAKE_CUDA_DROP was set.
  [[nodiscard]] int calls(const std::string& kind) const;
  /// The first race since then, in words; empty: there was none.
  [[nodiscard]] const std::string& race() const noexcept { return race_; }
  /// Whether the call that was left out stood for a copy, whose buffer the host may use when it has waited for it. The
  /// driver does not see that.
  [[nodiscard]] bool was_for_host() const noexcept { return was_for_host_; }

 private:
  void read_setting();

  std::string setting_;  ///< of FAKE_CUDA_DROP
  std::string dropped_;  ///< the kind that it names
  int turn_ = 0;         ///< and the call of that kind, from 1
  std::map<std::string, int> calls_;
  std::string race_;
  bool was_for_host_ = false;
};

}  // namespace spillway::device::fake
