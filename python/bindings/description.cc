// The model that the planner is told of, for Python: spillway::plan::Description and its parts.
#include "spillway/plan/description.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "module.h"
#include "spillway/plan/description_fields.h"
#include "spillway/plan/json.h"
#include "struct.h"

namespace nb = nanobind;
namespace state = spillway::state;
using spillway::plan::Description;

namespace {

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
  bind_fields<TensorSpec>(module, "TensorSpec", "A tensor of a model.");
  bind_fields<BlockSpec>(module, "BlockSpec", "Tensors that execute together.");
}

}  // namespace

void bind_description(nb::module_& module) {
  bind_blocks(module);
  bind_fields<state::World>(module, "World", "The processes of a run, and which of them this one is.");
  bind_fields<spillway::optim::RefitRule>(module, "RefitRule", "When auxiliary values are made anew from a gradient.");
  bind_fields<Description>(module, "Description", "The model and the largest step it will be asked for.")
      .def_static("parse", &spillway::plan::parse_description, nb::arg("text"))
      .def("to_json", [](const Description& self) { return spillway::plan::to_json(self); });
}
