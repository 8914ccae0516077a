#include "spillway/execute/weight_exchange.h"

namespace spillway::execute {

std::vector<network::Message> WeightExchange::messages(const plan::Task& task) {
  const auto& pass = plan_.plan.schedule.passes[task.what.index];
  return task.op == plan::Op::gather ? gather(pass) : gradients_->messages(pass);
}

void WeightExchange::arrived(const plan::Task& task) {
  if (task.op == plan::Op::scatter) gradients_->arrived(plan_.plan.schedule.passes[task.what.index]);
}

std::vector<network::Message> WeightExchange::gather(const plan::Pass& pass) const {
  const auto& description = plan_.description;
  const auto rule = description.rule();
  const auto chunks = plan::chunks_of(plan_.layout, pass);
  auto* at = arenas_.at(plan_.plan.schedule, pass.weights);
  std::vector<network::Message> out;
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    const auto& chunk = plan_.layout.chunks()[c];
    const std::span<std::byte> bytes(at, weight_bytes(rule, chunk));
    at += bytes.size();
    if (!state::is_trainable(chunk.training)) continue;
    const auto owner = description.owner(plan_.layout, chunk);
    if (owner != description.world.rank) {
      out.push_back({.peer = owner, .sends = false, .bytes = bytes});
      continue;
    }
    for (std::size_t peer = 0; peer < description.world.size; ++peer) {
      if (peer != owner) out.push_back({.peer = peer, .sends = true, .bytes = bytes});
    }
  }
  return out;
}

}  // namespace spillway::execute
