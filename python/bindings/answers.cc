// Answers of an engine for Python: the summary of its plan, plans that fit, counters, and places of its memory.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <nlohmann/json.hpp>

#include "module.h"
#include "spillway/base/field_json.h"
#include "spillway/execute/telemetry_fields.h"
#include "spillway/plan/fits_fields.h"
#include "spillway/plan/summary_fields.h"
#include "struct.h"

namespace nb = nanobind;

namespace {

/// An answer that files hold, too.
template <class T>
void bind_answer(nb::module_& module, const char* name, const char* doc) {
  bind_fields<T>(module, name, doc)
      .def(
          "to_json", [](const T& self) { return spillway::make_json(self).dump(2); }, "The text that files hold.");
}

void bind_summary(nb::module_& module) {
  using namespace spillway::plan;  // NOLINT(google-build-using-namespace)
  bind_fields<PlannedTier>(module, "PlannedTier", "A tier, its budget and its planned peak.");
  bind_fields<PlannedBytes>(module, "PlannedBytes", "Bytes of one class on one tier.");
  bind_fields<LinkBytes>(module, "LinkBytes", "Bytes over the link of a device.");
  bind_fields<PathBytes>(module, "PathBytes", "Bytes of a storage path.");
  bind_fields<NetworkBytes>(module, "NetworkBytes", "Bytes to and from other processes.");
  bind_fields<SpillSeconds>(module, "SpillSeconds", "Seconds of a step by which spilling a layer is decided.");
  bind_fields<PlannedActivations>(module, "PlannedActivations", "Activations that autograd saves of layers.");
  bind_fields<PlannedFeatures>(module, "PlannedFeatures", "Features of images.");
  bind_fields<PlannedBlocks>(module, "PlannedBlocks", "Blocks by the work of the device with them.");
  bind_fields<PlannedPieces>(module, "PlannedPieces", "Experts that passes ask for, by their first places.");
  bind_fields<PlannedValue>(module, "PlannedValue", "One value of an axis, and the plan with it.");
  bind_fields<PlannedDecision>(module, "PlannedDecision", "An axis of which values were compared.");
  bind_fields<RemotePath>(module, "RemotePath", "A path whose drive is by another NUMA node.");
  bind_fields<RemotePaths>(module, "RemotePaths", "Paths whose drives are by another NUMA node.");
  bind_fields<DriveLife>(module, "DriveLife", "Wear of a drive.");
  bind_fields<PlannedSaving>(module, "PlannedSaving", "The file system of output_dir.");
  bind_fields<FullPlan>(module, "FullPlan", "The same plan with every matrix trained in full.");
  bind_fields<PlannedReduction>(module, "PlannedReduction", "Matrices whose gradients are reduced.");
  bind_fields<DurabilityCost>(module, "DurabilityCost", "Share of durability in a step.");
  bind_fields<PlannedUpdates>(module, "PlannedUpdates", "Order of updates.");
  bind_fields<PlannedSeconds>(module, "PlannedSeconds", "Seconds of a step by resource.");
  bind_fields<PlannedLookahead>(module, "PlannedLookahead", "Lookahead of transfers.");
  bind_answer<PlanSummary>(module, "PlanSummary", "The content of plan.json.");
}

void bind_fits(nb::module_& module) {
  using namespace spillway::plan;  // NOLINT(google-build-using-namespace)
  bind_fields<FitTable>(module, "FitTable", "Tokens per second by budget, then sequence, then batch.");
  bind_fields<LongerStep>(module, "LongerStep", "A step that accumulates one micro-batch more.");
  bind_fields<LargerMemory>(module, "LargerMemory", "The plan with a GiB more for saved activations.");
  bind_answer<Fits>(module, "Fits", "Plans that fit: the model at other budgets, sequences and batches.");
}

void bind_counters(nb::module_& module) {
  using namespace spillway::execute;  // NOLINT(google-build-using-namespace)
  bind_fields<PathCounters>(module, "PathCounters", "Work of a storage path so far.");
  bind_fields<PassCounters>(module, "PassCounters", "Passes of one kind on a device.");
  bind_fields<DeviceCounters>(module, "DeviceCounters", "Work of a device so far.");
  bind_fields<UpdateCounters>(module, "UpdateCounters", "Updates of one tier of host memory.");
  bind_fields<PieceCounters>(module, "PieceCounters", "Experts that steps asked for, of a layer.");
  bind_fields<NetworkCounters>(module, "NetworkCounters", "Bytes to and from other processes.");
  bind_fields<Outage>(module, "Outage", "A path that was retired.");
  bind_answer<Counters>(module, "Counters", "Counts of a run so far.");
  bind_fields<TierMemory>(module, "TierMemory", "Bytes of the arena on a tier of host memory.");
  bind_fields<BuffersAside>(module, "BuffersAside", "Buffers of one class that are planned for later tiers.");
  bind_answer<MemoryPlaces>(module, "MemoryPlaces", "Places of the arena, planned and as the kernel says.");
}

}  // namespace

void bind_engine_answers(nb::module_& module) {
  bind_summary(module);
  bind_fits(module);
  bind_counters(module);
}
