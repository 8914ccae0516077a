// Settings of an engine for Python: spillway::plan::EngineSettings, and those of described machines.
#include "spillway/plan/settings.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <nlohmann/json.hpp>

#include "module.h"
#include "spillway/machine/profile_json.h"
#include "spillway/plan/described.h"
#include "spillway/plan/described_fields.h"
#include "spillway/plan/settings_agreement.h"
#include "spillway/plan/settings_fields.h"
#include "spillway/plan/settings_json.h"
#include "struct.h"

namespace nb = nanobind;
using nlohmann::json;
using spillway::plan::EngineSettings;

namespace {

constexpr const char* kProfile = "profile";

/// A run's file has the profile as a file of its own has it; nothing if nothing was measured.
std::string write(const EngineSettings& settings) {
  auto out = spillway::plan::to_json(settings);
  if (settings.profile != spillway::machine::Profile{}) {
    out[kProfile] = json::parse(spillway::machine::to_json(settings.profile));
  }
  return out.dump(2);
}

EngineSettings parse(const std::string& text) {
  const auto object = json::parse(text, nullptr, false);
  if (object.is_discarded()) {
    throw spillway::Error(spillway::ErrorCode::bad_input, "the settings are not a JSON object");
  }
  auto out = spillway::plan::parse_settings(object);
  if (const auto profile = object.find(kProfile); profile != object.end() && !profile->empty()) {
    out.profile = spillway::machine::from_json(profile->dump(), kProfile);
  }
  return out;
}

void bind_engine_settings(nb::module_& module) {
  using namespace spillway::plan;  // NOLINT(google-build-using-namespace)
  bind_fields<SavedActivations>(module, "SavedActivations", "Layers that can keep what autograd saves of them.");
  bind_fields<Saving>(module, "Saving", "Files that a run writes to output_dir.");
  bind_fields<FileSystem>(module, "FileSystem", "A file system that storage directories or output_dir lie on.");
  bind_fields<PathSettings>(module, "PathSettings", "A storage path.");
  bind_fields<NodeSettings>(module, "NodeSettings", "A tier of host memory.");
  bind_fields<DeviceSettings>(module, "DeviceSettings", "A compute device with memory of its own.");
  bind_fields<PlacementSettings>(module, "PlacementSettings", "Shares of groups of fields in memory.");
  bind_fields<PassSeconds>(module, "PassSeconds", "Seconds of the passes of the largest step, by kind.")
      .def("scaled", &scale, nb::arg("factor"));
  bind_fields<EngineSettings>(module, "EngineSettings", "Values that an engine plans and opens a run with.")
      .def_static("parse", &parse, nb::arg("text"))
      .def("to_json", &write)
      .def(
          "agree",
          [](const EngineSettings& self, const std::vector<EngineSettings>& every) { return agree(self, every); },
          nb::arg("every"));
}

void bind_described(nb::module_& module) {
  using namespace spillway::plan;  // NOLINT(google-build-using-namespace)
  bind_fields<ProductCalls>(module, "ProductCalls", "Products of that shape.");
  bind_fields<AttentionCalls>(module, "AttentionCalls", "Calls of attention.");
  bind_fields<ElementCalls>(module, "ElementCalls", "Calls of an operation that is bound by memory.");
  bind_fields<PassOperations>(module, "PassOperations", "Operations of one pass.");
  bind_fields<TracedPass>(module, "TracedPass", "The operations of a kind of pass.");
  bind_fields<FewTokens>(module, "FewTokens", "A trace of fewer tokens.");
  bind_fields<Trace>(module, "Trace", "A trace of the model's own code.");
  bind_fields<StepWork>(module, "StepWork", "Work of one micro-batch.");
  bind_fields<MachineRequest>(module, "MachineRequest", "The request to a described machine.");
  bind_fields<DescribedMachine>(module, "DescribedMachine", "Inputs of an engine's planner for a described machine.");
  module.def("describe_machine", &describe_machine, nb::arg("description"), nb::arg("request"), nb::arg("profile"),
             "Settings of an Engine for the machine of a profile; see plan/described.h.");
}

}  // namespace

void bind_settings(nb::module_& module) {
  bind_engine_settings(module);
  bind_described(module);
}
