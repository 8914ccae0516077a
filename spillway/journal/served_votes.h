// Votes that another thread serves: it takes one, asks the other shards with a library of its own (torch.distributed
// from Python), and says what they answered.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "spillway/base/mutex.h"
#include "spillway/journal/vote.h"

namespace spillway::journal {

class ServedVotes : public VotePort {
 public:
  ServedVotes() = default;
  ~ServedVotes() override { close(); }
  ServedVotes(const ServedVotes&) = delete;
  ServedVotes& operator=(const ServedVotes&) = delete;

  /// Throws Error(internal) while a vote is under way. After close() `done` is told at once that votes are closed.
  void vote(std::int64_t step, Done done) override;
  void cancel() noexcept override;

  // By the thread that serves:

  /// The step of the next vote, once; waits for one. Empty: votes are closed, and none will come.
  [[nodiscard]] std::optional<std::int64_t> next();
  /// The vote for `step` has ended with this minimum over all shards. `error`: why it has none; empty: it has. The
  /// answer to a vote that was cancelled is passed over. Throws Error(bad_input) for a vote that was not taken.
  void end(std::int64_t step, std::int64_t minimum, const std::string& error = {});

  /// Lets next() go, and ends the vote under way with an error. Any thread; again does nothing.
  void close() noexcept;

 private:
  void fail(const char* why) noexcept;

  Mutex mutex_;
  Condition arrived_;
  bool closed_ SPILLWAY_GUARDED_BY(mutex_) = false;
  std::optional<std::int64_t> waiting_ SPILLWAY_GUARDED_BY(mutex_);  ///< not taken yet
  std::optional<std::int64_t> taken_ SPILLWAY_GUARDED_BY(mutex_);    ///< by the thread that serves
  Done done_ SPILLWAY_GUARDED_BY(mutex_);                            ///< of the vote under way; null: none is
};

}  // namespace spillway::journal
