// State of a run while it works: what it has counted, and where its memory lies.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "spillway/execute/asked_pieces.h"
#include "spillway/execute/executor.h"
#include "spillway/execute/nodes.h"
#include "spillway/execute/resources.h"
#include "spillway/execute/run_storage.h"
#include "spillway/execute/saving.h"
#include "spillway/execute/silence.h"
#include "spillway/execute/telemetry.h"
#include "spillway/network/counting_port.h"

namespace spillway::execute {

/// The parts of a run that count what they do.
struct Counted {
  const Resources& resources;
  const RunStorage& storage;
  const Executor& executor;
  const AskedPieces& asked_pieces;
  const Saving& saving;
};

/// Counts so far, without those of the network.
[[nodiscard]] Counters counters(const Counted& run, const plan::Budget& budget);

/// Bytes that went between processes. Nothing in a world of one, where `network` is null.
[[nodiscard]] std::optional<NetworkCounters> network_counters(const network::CountingPort* network);

/// Silence of each path, and of each lane of a device ("device:to_device"). Any thread may ask.
[[nodiscard]] std::map<std::string, Silence> silence(const Counted& run, const plan::Plan& plan,
                                                     const state::Layout& layout, const plan::Budget& budget);

/// Empty where other processes do not wait for this one, as far as it knows. Any thread may ask.
[[nodiscard]] std::optional<Delay> lateness(const Counted& run, const plan::Schedule& schedule,
                                            const state::Layout& layout, const plan::Budget& budget);

/// Places of `arena`, planned and as the kernel says. Nothing where the plan places nothing on nodes.
[[nodiscard]] std::optional<MemoryPlaces> where(const plan::Plan& plan, const state::Layout& layout,
                                                const state::UpdateRule& rule, const plan::Budget& budget,
                                                const std::vector<NodeOptions>& nodes,
                                                std::span<const std::byte> arena);

}  // namespace spillway::execute
