// Updates that wait until a pass asks for their chunks: which steps each chunk has yet to take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spillway/optim/step.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {

class WaitingUpdates {
 public:
  /// The schedule must outlive it.
  explicit WaitingUpdates(const plan::Schedule& schedule);

  /// A step that every chunk has to take; called while no update runs.
  void add(const optim::Step& step);
  /// The chunk takes the steps that it has left out; false if there are none.
  bool take(plan::Index chunk);
  /// True if a chunk has left out a step.
  [[nodiscard]] bool any() const;
  /// The steps that the chunk has taken last, in their order.
  [[nodiscard]] std::span<const optim::Step> list_steps(plan::Index chunk) const;

 private:
  struct Chunk {
    std::uint64_t first = 0, end = 0;  ///< steps that it has taken last
  };

  void drop_taken();

  const plan::Schedule& schedule_;
  std::vector<Chunk> chunks_;       ///< by chunk; empty if no update waits
  std::vector<optim::Step> steps_;  ///< from number `first_` on
  std::uint64_t first_ = 0;
};

}  // namespace spillway::execute
