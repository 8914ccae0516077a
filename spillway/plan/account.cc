#include "spillway/plan/account.h"

#include <algorithm>

#include "spillway/plan/arena_layout.h"
#include "spillway/plan/memory_breakdown.h"
#include "spillway/plan/prediction.h"
#include "spillway/plan/reserve.h"
#include "spillway/plan/traffic.h"

namespace spillway::plan {
namespace {

/// The block that logits are made of; none: there is no head.
/// Keeps the logits of as many slices as there is room for, from the head's loss to its gradient.
void keep_logits(const Problem& problem, const Room& room, Plan& plan) {
  const auto& [description, layout, budget, rates, decisions] = problem;
  const auto* head = description.head(layout);
  if (!budget.keeps_logits || budget.device || head == nullptr) return;
  const bool several = !plan.node_peaks.empty();
  const auto capacity = several ? room.nodes[0] : budget.dram;
  const auto peak = several ? plan.node_peaks[0] : plan.dram_peak;
  const Bytes slice = description.tokens * head->slice_rows * state::field_bytes(description.computes()).weight;
  plan.kept_slices = std::min<std::uint64_t>(head->chunks, (capacity - std::min(capacity, peak)) / slice);
  plan.kept_logits = plan.kept_slices * slice;
  plan.dram_peak += plan.kept_logits;
  if (several) plan.node_peaks[0] += plan.kept_logits;
  plan.ample = plan.ample && plan.kept_slices == head->chunks;
}

/// The rates with what a plan keeps of logits: of the head's three products in the second pass one is that of the
/// first.
Rates rates_of(const Problem& problem, const Plan& plan) {
  auto out = problem.rates;
  if (plan.kept_slices == 0) return out;
  const auto part =
      static_cast<double>(plan.kept_slices) / static_cast<double>(problem.description.head(problem.layout)->chunks);
  out.head_gradient -= part * std::min(out.head_loss, out.head_gradient / 3);
  return out;
}

void count_peaks(const Problem& problem, const Room& room, Plan& plan) {
  plan.auxiliary = room.auxiliary;
  plan.update_workspace = room.update_workspace;
  plan.piece_staging = room.piece_staging;
  plan.dram_peak = room.fixed + plan.arena;
  if (problem.budget.device) plan.device_peak = problem.device_work() + plan.device_arena;
  if (plan.regions.empty()) return;
  plan.node_peaks = bytes_by_node(plan.regions, room.nodes.size());
  plan.node_peaks[0] += room.fixed;
}

void count_traffic(Plan& plan) {
  const auto moved = traffic_of(plan.schedule);
  plan.read_per_step = moved[Lane::read];
  plan.written_per_step = moved[Lane::write];
  plan.to_device_per_step = moved[Lane::to_device];
  plan.from_device_per_step = moved[Lane::from_device];
}

void break_memory_down(const Problem& problem, Plan& plan) {
  plan.dram_breakdown = host_breakdown(plan.schedule, plan.arena);
  if (!problem.budget.device) return;
  const auto arithmetic = plan.device_workspace.bytes();
  plan.device_breakdown = memory_breakdown(plan.schedule, plan.device_arena - arithmetic, TierKind::device);
  plan.device_breakdown["arithmetic"] = arithmetic;
}

/// Bytes written and memory taken by the same plan without durable steps.
void count_durability(const Problem& problem, Plan& plan) {
  auto without =
      make_schedule(problem.description, problem.layout, plan.placement, plan.lookahead, {}, problem.saved());
  static_cast<void>(lay_out(without));
  if (problem.budget.device) static_cast<void>(lay_out(without, TierKind::device));
  plan.durable_per_step = plan.written_per_step - std::min(plan.written_per_step, traffic_of(without)[Lane::write]);
  add_reuse_dependencies(without);
  const auto seconds = predict(problem, without).step_seconds;
  plan.durable_seconds = std::max(0.0, plan.prediction.step_seconds - seconds);
}

/// How much faster the same step were with all drives near.
void count_remote_drives(const Problem& problem, Plan& plan) {
  auto near = problem.rates;
  near.paths = near.near_paths;
  const auto seconds = predict(problem.copy_with(near), plan.schedule).step_seconds;
  plan.remote_seconds = std::max(0.0, plan.prediction.step_seconds - seconds);
}

void count_early(Plan& plan) {
  for (const auto& early : plan.schedule.early) {
    if (early.task == kNone) continue;
    ++plan.early_chunks;
    plan.undo += plan.schedule.buffers[early.undo].bytes;
  }
}

}  // namespace

void account_for_paths(const Problem& problem, Plan& plan) {
  const auto& [description, layout, budget, rates, decisions] = problem;
  const auto durability = decisions.durability;
  auto need = budget.has_path() ? storage_need(description, layout, plan.placement, plan.schedule.activations,
                                               durability, budget.checkpoints)
                                : StorageNeed{};
  if (need.bytes() > 0) plan.path_overhead = budget.superblock;
  if (durability != Durability::none) plan.path_overhead += budget.records;
  const bool durable = durability != Durability::none || (!budget.durability && need.bytes() > 0);
  if (budget.saving) {
    plan.saving = saving_need(description, layout, *budget.saving, durable && need.breakdown.contains("state"));
  }
  const auto left = leave_room(budget, plan.saving.value_or(SavingNeed{}), need, plan.path_overhead);
  if (!budget.has_path()) return;
  plan.volumes = reserve(left, rates, durability, plan.path_overhead, need);
  plan.path_spare = need.spare;
  plan.path_breakdown = need.breakdown;
  plan.path_bytes = need.bytes();
}

void account_for_step(const Problem& asked, const Room& room, Plan& plan) {
  add_reuse_dependencies(plan.schedule);
  count_peaks(asked, room, plan);
  keep_logits(asked, room, plan);
  const auto rates = rates_of(asked, plan);
  plan.resident = resident_bytes(plan.schedule);
  count_traffic(plan);
  plan.prediction = predict(asked.copy_with(rates), plan.schedule);
}

void account_for_parts(const Problem& asked, Plan& plan) {
  const auto rates = rates_of(asked, plan);
  const auto problem = asked.copy_with(rates);
  if (problem.redo().gradients) count_durability(problem, plan);
  if (!rates.near_paths.empty()) count_remote_drives(problem, plan);
  count_early(plan);
  break_memory_down(problem, plan);
}

}  // namespace spillway::plan
