#include "spillway/plan/refusals.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/plan/arena_layout.h"
#include "spillway/plan/aside.h"
#include "spillway/plan/bisect.h"

namespace spillway::plan {
namespace {

constexpr const char* kSmallerStep = " or with a smaller max_length or per_device_train_batch_size";

/// True if the first tier is all memory that is no file.
bool is_dram(const Budget& budget) {
  return budget.has_nodes() && traits(budget.nodes[0].kind).is_rest;
}

/// MiB of the first tier, which is what settings can enlarge for sure: what comes and goes lies there.
Bytes least_first_node(const Problem& problem, const Room& room, const Placement& least, const Lookahead& lookahead,
                       Bytes enough) {
  auto ways = distribution_policies(problem.rates, room.nodes.size(), problem.budget.has_path());
  const auto more = policies_aside(ways, room.nodes.size());
  ways.insert(ways.end(), more.begin(), more.end());
  return enough - bisect(enough - std::min(enough, room.nodes[0] / MiB), [&](Bytes less) {
           auto other = room;
           other.nodes[0] = (enough - less) * MiB;
           if (is_dram(problem.budget)) other.arena += std::max(other.nodes[0], room.nodes[0]) - room.nodes[0];
           Trial trial(problem, std::move(other));
           return std::ranges::any_of(ways, [&](const DistributionPolicy& way) {
             trial.distribute_by(&way);
             return trial.lay_out(least, lookahead);
           });
         });
}

/// A tier that the placement names has to have room for what is to lie there, whatever the others have.
void refuse_named(const Problem& problem, const Room& room, const Placement& least, const Lookahead& lookahead,
                  Bytes padding) {
  auto schedule = problem.schedule(put_aside(problem, least, {}, room.nodes), lookahead);
  static_cast<void>(lay_out(schedule));
  for (const auto& tier : {problem.budget.placement.grad_on, problem.budget.placement.activation_on}) {
    if (!tier || *tier == 0) continue;
    const auto& node = problem.budget.nodes[*tier];
    const auto needed = bytes_on(schedule, *tier) + padding, there = room.nodes[*tier];
    if (needed <= there) continue;
    throw Error(ErrorCode::does_not_fit,
                text("does not fit on ", node.name(), ": what placement puts there takes ", human(needed),
                     ", and there is ", human(there), ". It would fit with ", traits(node.kind).flag,
                     traits(node.kind).is_numa ? text(node.id) : "", "=", ceil_div(needed, MiB),
                     "MiB, with another tier in --placement,", kSmallerStep));
  }
}

[[noreturn]] void refuse_nodes(const Problem& problem, const Room& room, const Placement& least,
                               const Lookahead& lookahead, Bytes padding) {
  const auto& nodes = problem.budget.nodes;
  std::string there;
  for (std::size_t n = 0; n < room.nodes.size(); ++n) {
    there += text(there.empty() ? "" : ", ", nodes[n].name(), " with ", human(room.nodes[n]));
  }
  refuse_named(problem, room, least, lookahead, padding);
  const auto later = over_later_tiers(room.nodes.size());  // as much as has room there
  auto schedule = problem.schedule(put_aside(problem, least, later, room.nodes, padding), lookahead);
  const auto arena = arena_of(problem, schedule);
  const auto moving = arena - resident_bytes(schedule) - bytes_moving_later(schedule);
  const auto enough = ceil_div(room.fixed + arena + padding, MiB);
  const bool dram = is_dram(problem.budget);
  throw Error(ErrorCode::does_not_fit,
              text("does not fit ", dram ? "in DRAM and memory files" : "on the NUMA nodes",
                   ": the smallest plan for this placement needs ", human(room.fixed + moving), " on ", nodes[0].name(),
                   " for the process and what comes and goes, and ", human(arena - moving),
                   " there and on the others for all else, and there is ", there, ". It would fit with ",
                   dram ? std::string("--dram_budget ") : text("--node ", nodes[0].id, "="),
                   least_first_node(problem, room, least, lookahead, enough), "MiB",
                   problem.budget.has_path() ? ", with --placement auto" : ", with --storage DIR", kSmallerStep));
}

[[noreturn]] void refuse_dram(const Problem& problem, const Room& room, Bytes arena) {
  const auto& budget = problem.budget;
  auto message =
      text("does not fit in DRAM: the smallest plan for this placement needs ", human(room.fixed + arena),
           " (interpreter and libraries ", human(budget.process), ", PyTorch's working set ", human(problem.work()),
           ", arena ", human(arena), ", engine ",
           human(kEngineBytes + room.auxiliary + room.update_workspace + room.piece_staging), "), and dram_budget is ",
           human(budget.dram), ". It would fit with --dram_budget ", ceil_div(room.fixed + arena, MiB), "MiB");
  auto other = budget;
  if (!other.has_path()) other.paths.emplace_back();
  other.placement = {};
  const auto spilled = smallest_arena({problem.description, problem.layout, other, problem.rates, problem.decisions});
  if (spilled + MiB < arena) {
    message += text(budget.has_path() ? ", with --placement auto" : ", with --storage DIR", " and --dram_budget ",
                    ceil_div(room.fixed + spilled, MiB), "MiB");
  }
  throw Error(ErrorCode::does_not_fit, text(message, ",", kSmallerStep));
}

}  // namespace

void refuse(const Problem& problem, const Units& units, const Room& room, std::uint32_t device_ahead) {
  const auto least = units.place(0);
  const auto lookahead = lookahead_at(problem, 0, device_ahead);
  auto schedule = problem.schedule(least, lookahead);
  const auto padding = node_padding(room.nodes.size(), problem.layout, problem.weight_element());
  const auto arena = arena_of(problem, schedule) + padding;
  if (is_dram(problem.budget) || (arena <= room.arena && room.has_nodes()))
    refuse_nodes(problem, room, least, lookahead, padding);
  refuse_dram(problem, room, arena);
}

}  // namespace spillway::plan
