#include "spillway/plan/requests.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/plan/units.h"

namespace spillway::plan {
namespace {

constexpr std::uint64_t kMostVirtualRanks = 1U << 20;

void check_placement(const Problem& problem) {
  if (problem.budget.has_path()) return;
  if (problem.durability() == Durability::step) {
    throw Error(ErrorCode::bad_input,
                "durability: step keeps every step on the storage paths, but there is none; add --storage DIR or use "
                "--durability none");
  }
  for (const auto& group : kGroups) {
    if ((problem.budget.placement.*group.share).value_or(1) < 1) {
      throw Error(ErrorCode::bad_input,
                  "placement asks for a storage path, but there is none; add --storage DIR or use --placement dram");
    }
  }
}

void check_updates(const Budget& budget) {
  if (budget.update_schedule != Updates::early || !budget.clipping || budget.speculative_updates) return;
  throw Error(ErrorCode::bad_input,
              "update_schedule early updates chunks during backward, but the factor that max_grad_norm clips by is "
              "known only after it; add --speculative_updates (by a predicted factor, undone when it was wrong), or "
              "use --max_grad_norm 0 or --update_schedule deferred");
}

void check_learning(const state::Layout& layout) {
  if (layout.trainable_parameters() > 0) return;
  throw Error(ErrorCode::bad_input, "all tensors of the model are frozen, so there is nothing to train");
}

/// Refuses requests that several processes cannot serve.
void check_world(const Problem& problem) {
  const auto& [size, rank, local] = problem.description.world;
  if (size == 1) return;
  const auto refuse = [&](const auto&... words) {
    throw Error(ErrorCode::bad_input, text("a run of ", size, " processes ", words...));
  };
  if (rank >= size) refuse("has no rank ", rank, "; ranks begin with 0");
  if (local == 0 || size % local != 0) refuse("is not made of machines of ", local, " processes");
  if (size > problem.layout.shards()) {
    refuse("and virtual_ranks ", problem.layout.shards(), ": each needs one; start fewer, or use virtual_ranks ", size);
  }
}

void check_device_state(const Problem& problem) {
  const auto& device = problem.budget.device;
  if (!device || device->state.value_or(0) == 0) return;
  if (const auto why = no_device_update(problem.description.rule()); !why.empty()) {
    throw Error(ErrorCode::bad_input, text("placement asks for states on the device, but ", why,
                                           "; leave them to the host, or train with the first"));
  }
}

}  // namespace

void check_description(const Description& description) {
  state::check_format(description.rule());
  if (description.hidden_size > 0 && description.tokens == 0) {
    throw Error(ErrorCode::bad_input,
                "the key tokens has the value 0; a step of a model with layers has a token or more");
  }
  if (description.virtual_ranks < 1 || description.virtual_ranks > kMostVirtualRanks) {
    throw Error(ErrorCode::bad_input, text("the key virtual_ranks has the value ", description.virtual_ranks,
                                           "; it must be 1 to ", kMostVirtualRanks));
  }
  const auto& refits = description.refits;
  if (refits.check_every == 0 || !(refits.threshold > 0)) {
    throw Error(ErrorCode::bad_input, text("refits are made every ", refits.check_every, " updates beyond an error of ",
                                           refits.threshold, "; both must be above 0"));
  }
}

void check_request(const Problem& problem) {
  check_world(problem);
  check_placement(problem);
  check_updates(problem.budget);
  check_learning(problem.layout);
  check_device_state(problem);
}

}  // namespace spillway::plan
