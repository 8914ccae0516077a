// The entries of a profile's `compute` as JSON (docs/formats/profile.md).
#pragma once

#include "spillway/machine/json_object.h"
#include "spillway/machine/profile.h"

namespace spillway::machine {

[[nodiscard]] Json json_of(const ComputeProfile& compute);
/// Throws Error(bad_input), which names the key.
[[nodiscard]] ComputeProfile compute_from(const JsonObject& object);

}  // namespace spillway::machine
