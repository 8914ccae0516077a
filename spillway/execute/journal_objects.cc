#include "spillway/execute/journal_objects.h"

#include "spillway/optim/step.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {
journal::JournalSpec journal_spec(const plan::Description& description, const state::Layout& layout,
                                  plan::Durability durability, const std::string& run, std::size_t paths) {
  return journal_spec(description, layout, state::Ownership(layout), durability, run, paths);
}

journal::JournalSpec journal_spec(const plan::Description& description, const state::Layout& layout,
                                  const state::Ownership& ownership, plan::Durability durability,
                                  const std::string& run, std::size_t paths) {
  journal::JournalSpec out;
  out.run = run;
  out.paths = static_cast<std::uint32_t>(paths);
  out.rank = static_cast<std::uint32_t>(ownership.world().rank);
  out.world = static_cast<std::uint32_t>(ownership.world().size);
  out.update = optim::extension_bytes(*description.optimizer);
  out.durability = durability == plan::Durability::step ? journal::Durability::step : journal::Durability::checkpoint;
  list_objects(description, layout, ownership, out);
  return out;
}

journal::ObjectSizes object_sizes(const plan::Description& description, const state::Layout& layout,
                                  const journal::JournalSpec& spec) {
  const auto rule = description.rule();
  journal::ObjectSizes out;
  static_assert(journal::kWeightPart == 0 && journal::kStatePart == 1);
  for (const auto& chunk : layout.chunks()) {
    out.snapshots.push_back({weight_bytes(rule, chunk), state_bytes(rule, chunk)});
  }
  const auto first_sparse = GradientIds(description, layout).find_sparse(0);
  for (std::uint32_t gradient = 0; gradient < spec.gradients.size(); ++gradient) {
    if (gradient < first_sparse) {
      out.gradients.push_back({grad_bytes(rule, layout.chunks()[spec.gradients[gradient].first_chunk])});
    } else {
      out.gradients.push_back({plan::kSparsePart, true});
    }
  }
  return out;
}

}  // namespace spillway::execute
