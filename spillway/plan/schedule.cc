#include "spillway/plan/schedule.h"

#include "spillway/plan/step/passes.h"

namespace spillway::plan {

Range chunks_of(const state::Layout& layout, const Pass& pass) {
  const auto& block = layout.blocks()[pass.block];
  return {static_cast<Index>(block.first_chunk) + pass.slice, static_cast<Index>(block.pass_chunks)};
}

void Schedule::add_chunks(std::size_t count) {
  for (auto* list : {&update_task, &refit_task, &resident_weight, &resident_state}) list->assign(count, kNone);
  groups.assign(count, {});
  early.assign(count, {});
}

void set_nodes(Schedule& schedule, const Placement& placement) {
  schedule.node = placement.nodes();
  for (Index c = 0; c < schedule.update_task.size(); ++c) {
    if (schedule.update_task[c] == kNone) continue;
    const auto unit = placement[c].update_unit();
    schedule.tasks[schedule.update_task[c]].unit = unit;
    if (schedule.early[c].task != kNone) schedule.tasks[schedule.early[c].task].unit = unit;
  }
}

Schedule make_schedule(const Description& description, const state::Layout& layout, const Placement& placement,
                       const Lookahead& lookahead, const Redo& redo, const SavedPlacement& saved) {
  step::StepGraph graph({description, layout, placement, lookahead, redo, saved});
  step::add_block_passes(graph);
  step::add_updates(graph);
  step::add_operands(graph);
  step::add_saved(graph);
  step::add_activations(graph);
  step::add_weights(graph);
  step::add_gradients(graph);
  step::add_refits(graph);
  step::add_rows(graph);
  step::order_network(graph);
  step::add_snapshot_hops(graph);
  step::add_update_hops(graph);
  step::add_refit_hops(graph);
  step::add_changes(graph);
  auto out = std::move(graph).freeze();
  set_nodes(out, placement);
  complete_conditions(out);
  return out;
}

std::vector<bool> idle_priority(const Schedule& schedule) {
  std::vector<bool> out;
  out.reserve(schedule.tasks.size());
  for (const auto& task : schedule.tasks) {
    out.push_back(traits(task.lane).server == Server::cores && task.when.phase != Phase::early);
  }
  const auto each_need = [&](const auto& body) {
    for (Index t = 0; t < schedule.tasks.size(); ++t) {
      for (const auto& need : schedule.tasks[t].needs) body(t, schedule.tasks[t], need.task);
    }
  };
  each_need([&](Index t, const Task& task, Index need) {
    const auto& lane = traits(task.lane);
    const bool refit = schedule.tasks[need].op == Op::refit;
    if (lane.server == Server::network || lane.fetches || (is_path(task.lane) && refit)) out[need] = false;
    if (is_read(schedule.tasks[need].lane)) out[t] = false;
  });
  each_need([&](Index t, const Task& task, Index need) {  // what they wait for cannot wait either
    if (task.lane == Lane::update && !out[t] && schedule.tasks[need].op == Op::refit) out[need] = false;
  });
  return out;
}

}  // namespace spillway::plan
