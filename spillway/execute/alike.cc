#include "spillway/execute/alike.h"

#include <cstdint>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/network/exchange.h"

namespace spillway::execute {
namespace {

/// FNV-1a of whole numbers.
class Hash {
 public:
  void add(std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte, value >>= 8) state_ = (state_ ^ (value & 0xff)) * 0x100000001b3ULL;
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

std::uint64_t signature(const RunPlan& plan) {
  Hash out;
  const auto& description = plan.description;
  for (const auto value : {description.virtual_ranks, description.micro_batches, description.seed,
                           std::uint64_t{description.world.local}}) {
    out.add(value);
  }
  for (const auto& chunk : plan.layout.chunks()) {
    for (const auto value : {chunk.elements, std::uint64_t{chunk.shard}, weight_bytes(description.rule(), chunk)}) {
      out.add(value);
    }
  }
  const auto& schedule = plan.plan.schedule;
  for (const auto t : schedule.network) {
    const auto& task = schedule.tasks[t];
    out.add(static_cast<std::uint64_t>(task.op));
    out.add(task.what.index);
  }
  return out.value();
}

}  // namespace

void check_alike(const RunPlan& plan) {
  const auto size = plan.description.world.size, rank = plan.description.world.rank;
  std::vector<std::uint64_t> found(size, signature(plan));
  std::vector<network::Message> messages;
  auto own = found[rank];
  for (std::size_t peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    messages.push_back({.peer = peer, .sends = true, .bytes = std::as_writable_bytes(std::span(&own, 1))});
    messages.push_back({.peer = peer, .sends = false, .bytes = std::as_writable_bytes(std::span(&found[peer], 1))});
  }
  network::exchange(*plan.network, std::move(messages));
  for (std::size_t peer = 1; peer < size; ++peer) {
    if (found[peer] == found[0]) continue;
    throw Error(ErrorCode::bad_input, text("rank ", peer,
                                           " has another plan than rank 0: their models, seeds, micro-batches "
                                           "or budgets differ; give all ranks the same configuration and budgets"));
  }
}

}  // namespace spillway::execute
