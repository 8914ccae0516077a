#include "research/spillway_plan.h"

#include <nlohmann/json.hpp>

#include "spillway/base/error.h"
#include "spillway/plan/described.h"
#include "spillway/plan/json.h"
#include "spillway/plan/room.h"
#include "spillway/plan/search.h"
#include "spillway/plan/settings.h"

namespace spillway::research {
namespace {

using nlohmann::json;

json table(const PlannedModel& model, const char* name, const char* role) {
  return {
      {"name", name},
      {"role", role},
      {"tensors", {{{"name", name}, {"shape", {model.vocabulary, model.hidden}}, {"frozen", !model.tables_train}}}}};
}

json layer(const PlannedModel& model, std::uint64_t number) {
  auto tensors = json::array();
  for (const auto& matrix : model.matrices) {
    for (unsigned i = 0; i < matrix.count; ++i) {
      json tensor{{"name", text("layers.", number, ".", tensors.size())}, {"shape", {matrix.outer, matrix.inner}}};
      if (!matrix.trained) tensor["frozen"] = true;
      if (matrix.trained && model.rank > 0) {
        tensor["subspace"] = {{"rank", model.rank}, {"nonzeros", model.nonzeros}};
      }
      tensors.push_back(std::move(tensor));
    }
  }
  return {{"name", text("layers.", number)}, {"role", "layer"}, {"tensors", std::move(tensors)}};
}

/// Of rank 0, as it is where nobody says how many virtual ranks there are.
void add_world(json& out, const machine::Profile& profile) {
  const auto local = profile.gpus.size(), world = local * profile.machines;
  if (world <= 1) return;
  out["micro_batches"] = world * out["micro_batches"].get<std::uint64_t>();
  out["step_tokens"] = world * out["tokens"].get<std::uint64_t>();
  out.update({{"world", world}, {"rank", 0}, {"machines", profile.machines}, {"virtual_ranks", world}});
}

std::string described(const PlannedModel& model, const machine::Profile& profile) {
  auto blocks = json::array({table(model, "embedding", "embedding")});
  for (std::uint64_t i = 0; i < model.layers; ++i) blocks.push_back(layer(model, i));
  if (!model.tied) blocks.push_back(table(model, "head", "head"));
  json out{{"compute_dtype", "bf16"},
           {"hidden_size", model.hidden},
           {"micro_batches", model.micro_batches},
           {"tokens", model.sequence * model.batch * model.micro_batches},
           {"tied_head", model.tied},
           {"state_format", model.format},
           {"chunk_elements", model.chunk_elements},
           {"blocks", std::move(blocks)}};
  add_world(out, profile);
  if (model.rotate > 0) out["subspaces"] = {{"check_every", 100}, {"threshold", 0.9}, {"rotate", model.rotate}};
  return out.dump();
}

/// Layers spill as from a simulated device: from a GPU they do not.
plan::SavedActivations saved_by(const plan::Description& description, const PlannedModel& model) {
  plan::SavedActivations out{
      .token_bytes = model.saved_token_bytes, .on_device = model.spilling == 0, .layers = model.layers};
  if (model.spilling > 0) {
    out.keep = model.spilling;
    out.spill = plan::Spill::all;
    out.spilled_token_bytes = model.saved_token_bytes;
  }
  for (std::uint32_t b = 0; b < description.blocks.size(); ++b) {
    if (description.blocks[b].role == state::BlockRole::layer) out.blocks.push_back(b);
  }
  return out;
}

struct Asked {
  plan::Description description;
  plan::Budget budget;
  plan::Rates rates;
};

Asked asked_of(const machine::Profile& profile, const PlannedModel& model) {
  plan::MachineRequest request;
  request.settings.dram_budget = model.dram;
  request.settings.durability = model.durability;
  request.work.sequence = model.sequence;
  request.work.batch = model.batch;
  request.work.query = model.query;
  request.work.key = model.key;
  request.work.feed_forward = model.feed_forward;
  const auto description = plan::parse_description(described(model, profile));
  const auto found = plan::describe_machine(description, request, profile).settings;
  Asked out{description, plan::make_budget(found), plan::make_rates(found)};
  if (model.boundaries) {
    out.budget.placement.activation_on = model.boundaries;
    out.budget.device->activation = 0;
  }
  if (model.saved_token_bytes > 0) out.budget.saved_activations = saved_by(description, model);
  return out;
}

}  // namespace

std::vector<LayerMatrix> llama_matrices(std::int64_t hidden, std::int64_t query, std::int64_t key,
                                        std::int64_t feed_forward) {
  return {{query, hidden}, {key, hidden, 2}, {hidden, query}, {feed_forward, hidden, 2}, {hidden, feed_forward}};
}

plan::Plan spillway_plan(const machine::Profile& profile, const PlannedModel& model) {
  const auto asked = asked_of(profile, model);
  const auto make = asked.description.is_shared() ? &plan::make_plan : &plan::plan_alone;
  return make(asked.description, asked.description.layout(), asked.budget, asked.rates);
}

Bytes least_host_memory(const machine::Profile& profile, const PlannedModel& model) {
  auto asked = asked_of(profile, model);
  const auto layout = asked.description.layout();
  if (!asked.budget.has_path()) asked.budget.paths.push_back({.capacity = Bytes{1} << 50});
  asked.budget.placement = {.weight = 0, .state = 0, .grad = 0, .activation = 0};
  const plan::Problem problem{
      asked.description, layout, asked.budget, asked.rates, {.durability = plan::Durability::step}};
  return plan::room_of(problem, 0).fixed + plan::smallest_arena(problem);
}

}  // namespace spillway::research
