// Parts that reduce the gradients of a run, for each optim::Reduction.
#pragma once

#include <memory>

#include "spillway/plan/description.h"
#include "spillway/sink/gradient_sink.h"

namespace spillway::execute {

/// References must outlive it.
[[nodiscard]] std::unique_ptr<sink::GradientSink> make_sink(const plan::Description& description,
                                                            const state::Layout& layout);
/// Allocates for the largest reduced matrix of the layout, which must outlive it.
[[nodiscard]] std::unique_ptr<sink::HostUpdate> make_reduced_update(const state::Layout& layout,
                                                                    const state::UpdateRule& rule);

}  // namespace spillway::execute
