// The model that the planner is told of, for Python: spillway::plan::Description and its parts.
#include "spillway/plan/description.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "module.h"
#include "spillway/plan/json.h"
#include "struct.h"

namespace nb = nanobind;
namespace state = spillway::state;
using spillway::plan::Description;

namespace {

/// A reduction by its word.
constexpr View<state::TensorSpec, std::string> kReduction{
    "reduction", [](const state::TensorSpec& it) -> std::string { return it.by->word; },
    [](state::TensorSpec& it, std::string word) { it.by = &spillway::optim::parse_reduction(word); }};

void bind_blocks(nb::module_& module) {
  using state::TensorSpec, state::BlockSpec, state::Training, state::Form, state::BlockRole;
  nb::enum_<Training>(module, "Training", "How a tensor takes part in learning.")
      .value("full", Training::full)
      .value("reduced", Training::reduced)
      .value("frozen", Training::frozen);
  nb::enum_<BlockRole>(module, "BlockRole", "How a block takes part in a step.")
      .value("embedding", BlockRole::embedding)
      .value("layer", BlockRole::layer)
      .value("head", BlockRole::head);
  nb::enum_<Form>(module, "Form", "How the weights of a tensor are stored in a run.")
      .value("as_run", Form::as_run)
      .value("fp32", Form::fp32)
      .value("nf4", Form::nf4)
      .value("int8", Form::int8)
      .value("nf4_nested", Form::nf4_nested)
      .value("bf16_master", Form::bf16_master)
      .def_prop_ro("is_packed", [](Form self) { return state::is_packed(self); });
  bind_struct<TensorSpec>(module, "TensorSpec", "A tensor of a model.", Field("name", &TensorSpec::name),
                          Field("shape", &TensorSpec::shape), Field("decay", &TensorSpec::decay),
                          Field("training", &TensorSpec::training), Field("rank", &TensorSpec::rank),
                          Field("nonzeros", &TensorSpec::nonzeros), kReduction, Field("form", &TensorSpec::form),
                          Field("table", &TensorSpec::table), Field("pieces", &TensorSpec::pieces),
                          Field("apart", &TensorSpec::apart), Field("asked", &TensorSpec::asked),
                          Field("asked_by_piece", &TensorSpec::asked_by_piece));
  bind_struct<BlockSpec>(module, "BlockSpec", "Tensors that execute together.", Field("name", &BlockSpec::name),
                         Field("role", &BlockSpec::role), Field("tensors", &BlockSpec::tensors));
}

/// A type of elements by its name; weights have one of fewer.
constexpr View<Description, std::string> kComputeType{
    "compute_dtype", [](const Description& it) -> std::string { return state::name_of(it.computes()); },
    [](Description& it, std::string name) { it.compute_dtype = state::parse_compute_type(name); }};
constexpr View<Description, std::string> kWeightType{
    "weight_dtype", [](const Description& it) -> std::string { return state::name_of(it.weight_dtype); },
    [](Description& it, std::string name) { it.weight_dtype = state::parse_weight_type(name); }};
constexpr View<Description, std::string> kOptimizer{
    "optimizer", [](const Description& it) -> std::string { return it.optimizer->name; },
    [](Description& it, std::string name) { it.optimizer = &spillway::optim::parse(name); }};
constexpr View<Description, std::string> kStateFormat{
    "state_format", [](const Description& it) -> std::string { return state::name_of(it.state_format); },
    [](Description& it, std::string name) { it.state_format = state::parse_format(name); }};

}  // namespace

void bind_description(nb::module_& module) {
  using state::World, spillway::optim::RefitRule;
  bind_blocks(module);
  bind_struct<World>(module, "World", "The processes of a run, and which of them this one is.",
                     Field("size", &World::size), Field("rank", &World::rank), Field("local", &World::local));
  bind_struct<RefitRule>(module, "RefitRule", "When auxiliary values are made anew from a gradient.",
                         Field("check_every", &RefitRule::check_every), Field("threshold", &RefitRule::threshold),
                         Field("rotate_every", &RefitRule::rotate_every));
  bind_struct<Description>(
      module, "Description", "The model and the largest step it will be asked for.", kComputeType, kWeightType,
      kOptimizer, kStateFormat, Field("seed", &Description::seed), Field("blocks", &Description::blocks),
      Field("tied_head", &Description::tied_head), Field("hidden_size", &Description::hidden_size),
      Field("tokens", &Description::tokens), Field("feature_bytes", &Description::feature_bytes),
      Field("micro_batches", &Description::micro_batches), Field("accumulation", &Description::accumulation),
      Field("virtual_ranks", &Description::virtual_ranks), Field("shard_frozen", &Description::shard_frozen),
      Field("world", &Description::world), Field("step_tokens", &Description::step_tokens),
      Field("chunk_elements", &Description::chunk_elements), Field("refits", &Description::refits))
      .def_static("parse", &spillway::plan::parse_description, nb::arg("text"))
      .def("to_json", [](const Description& self) { return spillway::plan::to_json(self); });
}
