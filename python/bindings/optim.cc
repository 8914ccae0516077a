// Descriptors of optimizers for Python: converts. No logic.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "module.h"
#include "spillway/optim/optimizers.h"
#include "spillway/state/rule.h"

namespace nb = nanobind;

namespace {

using spillway::optim::Descriptor;
using spillway::optim::Hyperparameter;

template <class Strings>
std::vector<std::string> list(const Strings& strings) {
  return {strings.begin(), strings.end()};
}

std::vector<std::string> formats_of(const Descriptor& it) {
  std::vector<std::string> out;
  for (const auto format : it.formats) out.emplace_back(name_of(format));
  return out;
}

void bind_hyperparameter(nb::module_& module) {
  nb::class_<Hyperparameter>(module, "Hyperparameter", "A hyperparameter of an optimizer.")
      .def_prop_ro("name", [](const Hyperparameter& it) { return it.name; })
      .def_prop_ro("key", [](const Hyperparameter& it) { return it.key; })
      .def_prop_ro("default", [](const Hyperparameter& it) { return it.value; })
      .def_prop_ro("least", [](const Hyperparameter& it) { return it.least; })
      .def_prop_ro("below", [](const Hyperparameter& it) { return it.below; })
      .def_prop_ro("above", [](const Hyperparameter& it) { return it.above; })
      .def_prop_ro("words", [](const Hyperparameter& it) { return it.words; })
      .def_prop_ro("choices", [](const Hyperparameter& it) { return list(it.choices); });
}

void bind_descriptor(nb::module_& module) {
  nb::class_<Descriptor>(module, "OptimizerDescriptor", "What an optimizer declares about itself.")
      .def_prop_ro("name", [](const Descriptor& it) { return it.name; })
      .def_prop_ro("words", [](const Descriptor& it) { return it.words; })
      .def_prop_ro(
          "scope",
          [](const Descriptor& it) { return it.scope == spillway::optim::Scope::matrix ? "matrix" : "element"; })
      .def_prop_ro("fields", [](const Descriptor& it) { return list(it.fields); })
      .def_prop_ro("hyperparameters",
                   [](const Descriptor& it) {
                     return std::vector<Hyperparameter>(it.hyperparameters.begin(), it.hyperparameters.end());
                   })
      .def_prop_ro("formats", &formats_of)
      .def_prop_ro("decoupled_decay", [](const Descriptor& it) { return it.decoupled_decay; })
      .def_prop_ro("on_device", [](const Descriptor& it) { return it.on_device; })
      .def_prop_ro("others", [](const Descriptor& it) { return it.others == nullptr ? "" : it.others->name; });
}

}  // namespace

void bind_optim(nb::module_& module) {
  bind_hyperparameter(module);
  bind_descriptor(module);
  module.def(
      "optimizers",
      [] {
        std::vector<Descriptor> out;
        for (const auto* each : spillway::optim::all()) out.push_back(*each);
        return out;
      },
      "The descriptor of every optimizer (spillway/optim/descriptor.h).");
}
