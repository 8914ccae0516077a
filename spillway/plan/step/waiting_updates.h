// Updates that wait until a pass asks for their chunks: those of experts that no token has met.
#pragma once

#include "spillway/plan/step/graph.h"

namespace spillway::plan::step {

/// True if steps whose passes do not ask for a chunk leave its update out, and the next one that does makes up for it.
/// Such updates are element by element, on the host, and no durable step needs them.
[[nodiscard]] bool can_wait(const StepGraph& graph, Index c);

/// The task runs if the updates of chunk c are due.
void run_if_due(StepGraph& graph, Index task, Index c);

/// And the forward pass of the chunk begins it when it asks for the chunk.
void begin_when_asked(StepGraph& graph, Index task, Index c);

/// The weight of such a chunk comes for its update and the forward pass by `read`, and goes back by `write`.
void bring_when_asked(StepGraph& graph, Index c, Index read, Index write);

/// The pass begins after the update of chunk c that it needs: the backward pass after one that may wait, since the
/// forward pass asks for that, and each other pass of a step after all others.
void wait_for_update(StepGraph& graph, Index pass, Index c);

/// The position at which the last of such updates before a pass may end, or `least` if that is later.
[[nodiscard]] std::uint32_t end_of_wait(const StepGraph& graph, Index c, std::uint32_t least);

}  // namespace spillway::plan::step
