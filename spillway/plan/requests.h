// Requests that cannot be planned, whatever the sizes.
#pragma once

#include "spillway/plan/problem.h"

namespace spillway::plan {

/// Throws Error(bad_input) that names the key of a value which no description can have.
void check_description(const Description& description);

/// Throws Error(bad_input) with what to change: a placement on paths or durable steps without a path, early updates
/// that clipping forbids, states on a device that does not update such chunks, and a model that is frozen as a whole.
void check_request(const Problem& problem);

}  // namespace spillway::plan
