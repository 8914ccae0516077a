// Operands that passes add to or replace in one place.
#pragma once

#include "spillway/plan/step/graph.h"
#include "spillway/plan/step/uses.h"

namespace spillway::plan::step {

/// Adds the one place of an operand, in the memory that passes compute in. Returns the buffer.
Index add_shared(StepGraph& graph, const SharedUse& use, Bytes bytes);

}  // namespace spillway::plan::step
