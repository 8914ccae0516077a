// All optimizers, by name.
#pragma once

#include <span>
#include <string_view>

#include "spillway/optim/descriptor.h"

namespace spillway::optim {

extern const Descriptor adamw;  ///< two moments; decoupled weight decay
extern const Descriptor adam;   ///< two moments; weight decay is added to the gradient
extern const Descriptor lion;   ///< one moment; the sign of an interpolation, decoupled weight decay
extern const Descriptor sgd;    ///< one moment; weight decay is added to the gradient
extern const Descriptor muon;   ///< of matrix scope; AdamW for all others

[[nodiscard]] std::span<const Descriptor* const> all() noexcept;
/// Throws Error(bad_input) naming what there is.
[[nodiscard]] const Descriptor& parse(std::string_view name);

}  // namespace spillway::optim
