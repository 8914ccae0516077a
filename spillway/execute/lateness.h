// Task of this process that others wait for: the task of the network whose turn it is, and the work that has to end
// before it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

struct Lateness {
  plan::Index task = plan::kNone;   ///< of the network
  plan::Index cause = plan::kNone;  ///< what runs, or waits for its lane alone, and that the task comes after
  double seconds = 0;               ///< since it is the task's turn
};

/// One flag per task, true if it has ended: of an instance and of the one before.
using Ended = std::array<std::span<const std::uint8_t>, 2>;

/// Back from a task to one that waits for no other. `pass`: the task of the caller's pass, since passes run in their
/// order and one that could begin waits for that; kNone: there is none left.
[[nodiscard]] plan::Index cause_of(const plan::Schedule& schedule, const Ended& ended, plan::Index task,
                                   plan::Index pass);

/// "backward of layers.7": what a task of the network, or of a pass, is for. One that is of no pass is of a chunk.
[[nodiscard]] std::string pass_words(const plan::Schedule& schedule, const state::Layout& layout,
                                     const plan::Task& task);

}  // namespace spillway::execute
