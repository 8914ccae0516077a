// How the shards of a run agree that a step is durable on all of them.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

namespace spillway::journal {

/// The step of a shard on which nothing is durable.
inline constexpr std::int64_t kNoStep = -1;

/// A vote is one reduction over all shards of a run: the k-th vote of each of them belongs to the k-th of every other.
/// Thread safe.
class VotePort {
 public:
  /// Is told the smallest step that a shard has voted for, or the error for which there is none. Called once, on any
  /// thread, perhaps before vote() returns; must not throw.
  using Done = std::function<void(std::int64_t minimum, const std::exception_ptr& error)>;

  virtual ~VotePort() = default;
  /// Says that `step` (kNoStep: nothing) is durable on this shard; does not wait for the others. One vote is under way
  /// at a time.
  virtual void vote(std::int64_t step, Done done) = 0;
  /// The vote under way, if there is one, ends with an error before the call returns, whatever the others say.
  virtual void cancel() noexcept = 0;
};

}  // namespace spillway::journal
