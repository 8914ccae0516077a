#include "spillway/execute/weight_exchange.h"

#include <cstring>

#include "spillway/plan/routes.h"

namespace spillway::execute {

std::vector<network::Message> WeightExchange::messages(const plan::Task& task) {
  if (follows_refit(task)) return gradients_->refit_messages(task);
  const auto& pass = plan_.plan.schedule.passes[task.what.index];
  return plan::gathers(task.op) ? gather(pass, task.op) : gradients_->messages(pass, task.op);
}

void WeightExchange::arrived(const plan::Task& task) {
  if (follows_refit(task)) return gradients_->refit_arrived(task);
  if (adds(task)) gradients_->arrived(plan_.plan.schedule.passes[task.what.index], task.op);
}

bool WeightExchange::adds(const plan::Task& task) const {
  return !plan::gathers(task.op);
}

std::vector<network::Message> WeightExchange::gather(const plan::Pass& pass, plan::Op op) const {
  const auto& description = plan_.description;
  const auto& world = description.world;
  const auto rule = description.rule();
  const bool first = op == plan::Op::gather || !plan::has_hops(plan::Op::gather, world);
  std::vector<network::Message> out;
  plan::each_weight(pass, plan_.layout, rule, &plan::PassWeights::whole, [&](plan::Index c, plan::Place place) {
    const auto& chunk = plan_.layout.chunks()[c];
    if (!place.any() || !description.is_sent(chunk)) return;  // it may have no room there
    const std::span<std::byte> bytes(arenas_.at(plan_.plan.schedule, place), weight_bytes(rule, chunk));
    const auto owner = description.owner(plan_.layout, chunk);
    const auto& placement = plan_.plan.placement;
    const bool apart = placement[c].weight.keeps_own() && placement[c].weight.on_host();
    if (first && owner == world.rank && apart) {
      std::memcpy(bytes.data(), arenas_.at(plan_.plan.schedule, plan_.plan.schedule.groups[c].weight), bytes.size());
    }
    plan::each_hop(op, world, owner, [&](std::size_t peer, bool sends) { out.push_back({peer, sends, bytes}); });
  });
  return out;
}

}  // namespace spillway::execute
