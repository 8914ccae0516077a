// What a run says of itself while it works, as JSON; the fields are those of docs/reference and of metrics.jsonl.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "spillway/execute/nodes.h"
#include "spillway/execute/run.h"

namespace spillway::execute {

/// Bytes moved by path, measured rates and paths taken out; elements updated by node; seconds waited, by what for.
[[nodiscard]] std::string counters(const Run& run, const plan::Budget& budget);

/// By path its volume, what it has not answered yet and for how long it has been silent. Any thread may ask.
[[nodiscard]] std::string silence(const Run& run, const plan::Budget& budget);

/// Bytes by memory node, planned and as the kernel says of `arena`; {} where the plan deals nothing to nodes.
[[nodiscard]] std::string where(const plan::Plan& plan, const state::Layout& layout, const state::UpdateRule& rule,
                                const plan::Budget& budget, const std::vector<NodeOptions>& nodes,
                                std::span<const std::byte> arena);

}  // namespace spillway::execute
