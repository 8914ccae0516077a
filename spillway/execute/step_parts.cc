// Parts of a step, made in order.
#include "spillway/execute/nodes.h"
#include "spillway/execute/step.h"

namespace spillway::execute {
namespace {

StepProtocol::Options options_of(const RunPlan& plan) {
  const auto& description = plan.description;
  return {.optimizer = description.optimizer,
          .seed = description.seed,
          .scales_loss = traits(description.weight_dtype).scales_loss,
          .early = plan.plan.early_chunks > 0,
          .speculates = plan.budget.speculative_updates};
}

std::unique_ptr<SparseEmbedding> make_sparse_embedding(const RunPlan& plan, std::byte* memory) {
  const auto* table = plan.layout.embedding();
  if (table == nullptr) return nullptr;
  const auto block = static_cast<std::size_t>(table - plan.layout.blocks().data());
  auto out = std::make_unique<SparseEmbedding>(plan.description, plan.layout, block);
  const auto& schedule = plan.plan.schedule;
  const auto sums = schedule.shared(plan::Operand::row_sums), rows = schedule.shared(plan::Operand::rows);
  if (rows != plan::kNone) {  // else the table is frozen
    out->place(reinterpret_cast<float*>(memory + schedule.buffers[sums].offset),
               memory + schedule.buffers[rows].offset);
  }
  return out;
}

}  // namespace

Step::Step(const Parts& parts, const StepPosition& at, bool recovered)
    : parts_(parts),
      layout_(parts.plan.layout),
      protocol_(options_of(parts.plan), at, recovered),
      rows_(make_sparse_embedding(parts.plan, parts.resources.host().data())),
      updater_(parts.plan.plan.schedule, layout_, parts.plan.description.rule(), parts.resources.host().data(),
               rows_.get(), parts.resources.gradient_sink()),
      device_updates_(parts.plan.plan.schedule, layout_, parts.plan.description.rule(), parts.resources.arenas(),
                      parts.resources.gradient_sink()),
      digests_(parts.plan.plan.schedule, layout_, parts.plan.description, parts.resources.arenas(),
               parts.resources.arithmetic(), parts.resources.thread_pool()),
      gradients_(parts.plan.plan.schedule, layout_, parts.plan.description, parts.resources.arenas(), rows_.get(),
                 parts.resources.gradient_sink(), parts.resources.thread_pool(), parts.resources.arithmetic(),
                 &digests_),
      exchange_(parts.plan, parts.resources.arenas(), gradients_.exchange()),
      executor_(parts.plan.plan.schedule, parts.resources.host().data(), parts.store, updater_, cores_of(parts.plan),
                {parts.resources.device(), parts.resources.stream(), &device_updates_},
                {parts.plan.network, &exchange_}, &parts.tiers.slots()),
      passes_(parts.plan, parts.resources, rows_.get(), gradients_, executor_, parts.tiers.slots(), &digests_),
      pass_gradients_(parts.plan, parts.resources, passes_, gradients_),
      piece_swaps_(parts.plan, parts.tiers, passes_.asked_pieces()) {}

}  // namespace spillway::execute
