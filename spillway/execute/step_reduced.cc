// Reduced matrices at the beginning of a step: their auxiliary fields, and settings that they refuse.
#include "spillway/base/error.h"
#include "spillway/execute/step.h"
#include "spillway/network/exchange.h"
#include "spillway/plan/virtual_ranks.h"

namespace spillway::execute {

void Step::check(const StepUpdate& update) const {
  protocol_.check(update);
  if (update.weight_decay == 0 || layout_.reduction() == nullptr) return;
  const auto& optimizer = *parts_.plan.description.optimizer;
  if (optimizer.decoupled_decay) return;
  throw Error(ErrorCode::bad_input,
              text("weight_decay ", update.weight_decay, " with method ", layout_.reduction()->name, ": ",
                   optimizer.name, " adds it to the gradient, which is not there for a matrix that is trainable in a ",
                   layout_.reduction()->word, "; use adamw or lion, or weight_decay 0"));
}

/// The auxiliary fields that passes go by: those that the last update had.
void Step::begin_reduced(std::uint64_t micro_batches) {
  if (layout_.reduction() == nullptr) return;
  if (!reduced_read_) restore_reduced();  // no update is pending after a start or a load
  reduced_read_ = true;
  const plan::VirtualRanks ranks(parts_.plan.description.virtual_ranks, micro_batches);
  parts_.resources.gradient_sink().begin(protocol_.position().updates, protocol_.scaler().scale(),
                                         ranks.position_of(1));
}

void Step::restore_reduced() {
  const auto& description = parts_.plan.description;
  for (const auto& chunk : layout_.chunks()) {
    if (!chunk.reduced.any()) continue;
    const auto fields = parts_.resources.scratch().subspan(state_fields(description.rule(), chunk).auxiliary,
                                                           chunk.reduced.auxiliary_bytes());
    if (description.has(layout_, chunk)) parts_.tiers.load(chunk.id, nullptr, parts_.resources.scratch().data());
    if (description.is_shared()) {
      network::broadcast(*parts_.plan.network, description.owner(layout_, chunk), fields);
    }
    parts_.resources.gradient_sink().restore(layout_.spans(chunk.id).front().tensor, fields.data());
  }
}

}  // namespace spillway::execute
