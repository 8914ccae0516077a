// State of a run while it works, as JSON; the fields are those of docs/reference and of metrics.jsonl.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "spillway/execute/executor.h"
#include "spillway/execute/nodes.h"
#include "spillway/execute/resources.h"
#include "spillway/execute/run_storage.h"
#include "spillway/execute/saving.h"
#include "spillway/network/counting_port.h"

namespace spillway::execute {

/// The parts of a run that count what they do.
struct Counted {
  const Resources& resources;
  const RunStorage& storage;
  const Executor& executor;
  const Saving& saving;
};

/// Bytes moved by path, measured rates and retired paths; elements updated by NUMA node; seconds waited, by what for;
/// bytes to and from other processes. `network`: null in a world of one.
[[nodiscard]] std::string counters(const Counted& run, const plan::Budget& budget,
                                   const network::CountingPort* network = nullptr);

/// Silence of each path: its volume, the requests that it has not answered, and the seconds since its last answer. A
/// device has the same by lane ("device:to_device"), with the task and the bytes that the lane waits for. Any thread
/// may ask.
[[nodiscard]] std::string silence(const Counted& run, const plan::Plan& plan, const state::Layout& layout,
                                  const plan::Budget& budget);

/// {"pass": "backward of layers.7", "waits_for": what has to end first, "seconds"}: what other processes wait for; {}
/// where they do not, as far as this one knows. Any thread may ask.
[[nodiscard]] std::string lateness(const Counted& run, const plan::Schedule& schedule, const state::Layout& layout,
                                   const plan::Budget& budget);

/// Bytes by NUMA node, planned and as the kernel says of `arena`; {} where the plan places nothing on nodes.
[[nodiscard]] std::string where(const plan::Plan& plan, const state::Layout& layout, const state::UpdateRule& rule,
                                const plan::Budget& budget, const std::vector<NodeOptions>& nodes,
                                std::span<const std::byte> arena);

}  // namespace spillway::execute
