// An activation on its way from the pass that makes it to its home, and on to the pass that it comes back for.
#pragma once

#include "spillway/plan/step/graph.h"
#include "spillway/plan/step/uses.h"

namespace spillway::plan::step {

/// Adds its buffers, of so many bytes, and its hops.
void follow_activation(StepGraph& graph, const ActivationUse& use, const Residence& home, Bytes bytes,
                       BufferClass kind);

}  // namespace spillway::plan::step
