// A machine's profile for Python: spillway::machine::Profile and its parts.
#include "spillway/machine/profile.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "module.h"
#include "spillway/machine/profile_fields.h"
#include "spillway/machine/profile_json.h"
#include "struct.h"

namespace nb = nanobind;

void bind_profile(nb::module_& module) {
  using namespace spillway::machine;  // NOLINT(google-build-using-namespace)
  bind_fields<PathProfile>(module, "PathProfile", "Rates of one storage path.");
  bind_fields<NodeProfile>(module, "NodeProfile", "A NUMA node.");
  bind_fields<Saturation>(module, "Saturation", "How a rate grows with threads.");
  bind_fields<NodeAccess>(module, "NodeAccess", "What CPUs of one NUMA node reach on the memory of another.");
  bind_fields<LayerProfile>(module, "LayerProfile", "Products of a layer of that shape.");
  bind_fields<ProductRate>(module, "ProductRate", "The three products of a linear layer.");
  bind_fields<AttentionRate>(module, "AttentionRate", "Causal attention over rows of so many tokens.");
  bind_fields<OperationRate>(module, "OperationRate", "An operation of PyTorch that is bound by memory.");
  bind_fields<ComputeProfile>(module, "ComputeProfile", "What PyTorch reaches on the CPUs in one type.");
  bind_fields<LinkProfile>(module, "LinkProfile", "Copies between a NUMA node and a GPU.");
  bind_fields<GpuProfile>(module, "GpuProfile", "A GPU and its link.");
  bind_fields<Profile>(module, "Profile", "Rates and capacities of a machine.")
      .def_static(
          "parse", [](const std::string& text, const std::string& source) { return from_json(text, source); },
          nb::arg("text"), nb::arg("source") = "profile")
      .def("to_json", [](const Profile& self) { return to_json(self); })
      .def(
          "save", [](const Profile& self, const std::string& path) { save_profile(self, path); }, nb::arg("path"));
}
