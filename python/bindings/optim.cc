// Descriptors of optimizers for Python: converts. No logic.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "module.h"
#include "spillway/optim/optimizers.h"
#include "spillway/state/rule.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using spillway::optim::Descriptor;
using spillway::optim::Hyperparameter;

template <class Strings>
std::vector<std::string> list(const Strings& strings) {
  return {strings.begin(), strings.end()};
}

nb::dict as_dict(const Hyperparameter& it) {
  nb::dict out;
  out["name"] = it.name;
  out["key"] = it.key;
  out["default"] = it.value;
  out["least"] = it.least;
  out["below"] = it.below;
  out["above"] = it.above;
  out["words"] = it.words;
  out["choices"] = list(it.choices);
  return out;
}

std::vector<std::string> formats_of(const Descriptor& it) {
  std::vector<std::string> out;
  for (const auto format : it.formats) out.emplace_back(name_of(format));
  return out;
}

nb::dict as_dict(const Descriptor& it) {
  nb::dict out;
  nb::list hyperparameters;
  for (const auto& each : it.hyperparameters) hyperparameters.append(as_dict(each));
  out["name"] = it.name;
  out["words"] = it.words;
  out["scope"] = it.scope == spillway::optim::Scope::matrix ? "matrix" : "element";
  out["fields"] = list(it.fields);
  out["hyperparameters"] = hyperparameters;
  out["formats"] = formats_of(it);
  out["decoupled_decay"] = it.decoupled_decay;
  out["on_device"] = it.on_device;
  out["others"] = it.others == nullptr ? "" : it.others->name;
  return out;
}

}  // namespace

void bind_optim(nb::module_& module) {
  module.def(
      "optimizers",
      [] {
        nb::list out;
        for (const auto* each : spillway::optim::all()) out.append(as_dict(*each));
        return out;
      },
      "The descriptor of every optimizer (spillway/optim/descriptor.h); `others`: the name of the optimizer of what is "
      "no matrix of a layer, or \"\".");
}
