// spillway::Engine for Python: its settings, and what EngineTelemetry tells. No logic.
#include "engine.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "module.h"
#include "spillway/journal/lines.h"
#include "spillway/network/served.h"
#include "spillway/plan/settings.h"
#include "spillway/storage/listing.h"
#include "spillway/storage/volume.h"
#include "struct.h"

using namespace nb::literals;
using spillway::plan::EngineSettings;

namespace {

spillway::execute::DeviceOptions make_device(const EngineSettings& settings, const spillway::plan::Rates& rates) {
  spillway::execute::DeviceOptions out;
  if (!settings.device) return out;
  const auto& device = *settings.device;
  out.name = device.name;
  out.stream = reinterpret_cast<void*>(device.stream);  // NOLINT
  out.simulated.memory = device.memory;
  if (device.bounded) {
    out.simulated.to_device = rates.to_device;
    out.simulated.from_device = rates.from_device;
    out.simulated.latency = rates.copy_latency;
    out.simulated.update = rates.device_update;
  }
  return out;
}

spillway::execute::NodeOptions make_node(const spillway::plan::NodeSettings& node) {
  spillway::execute::NodeOptions out{.limit = node.limit};
  if (node.anywhere || traits(node.kind).is_rest) out.backing = spillway::memory::anywhere();
  if (!node.directory.empty()) out.backing = spillway::memory::in_file(node.directory);
  return out;
}

spillway::Settings make_settings(const EngineSettings& settings) {
  spillway::Settings out;
  out.budget = spillway::plan::make_budget(settings);
  out.rates = spillway::plan::make_rates(settings);
  out.threads = settings.threads;
  out.piece_period = settings.piece_period;
  out.run = settings.run;
  out.storage.overwrite = settings.overwrite;
  out.storage.keep = settings.keep;
  out.storage.erase = settings.erase;
  for (const auto& node : settings.nodes) out.nodes.push_back(make_node(node));
  out.device = make_device(settings, out.rates);
  for (const auto& path : settings.storage) {
    const bool whole = !path.device.empty();
    out.storage.places.push_back({whole ? path.device : path.directory, whole});
  }
  return out;
}

void bind_telemetry(nb::module_& module, PyEngine& engine) {
  using spillway::Silence, spillway::Delay;
  bind_struct<Silence>(module, "Silence", "A path, or a lane of a device with memory of its own.",
                       Field("volume", &Silence::volume), Field("device", &Silence::device),
                       Field("under_way", &Silence::under_way), Field("silent_seconds", &Silence::silent_seconds),
                       Field("task", &Silence::task), Field("bytes", &Silence::bytes));
  bind_struct<Delay>(module, "Delay", "Work of this process that others wait for.", Field("task", &Delay::task),
                     Field("waits_for", &Delay::waits_for), Field("seconds", &Delay::seconds));
  engine.def("plan", &Engine::summarize_plan)
      .def(
          "what_fits",
          [](const Engine& self, std::uint64_t sequence, std::uint64_t batch, double work_per_token,
             double device_per_token) {
            const nb::gil_scoped_release release;
            return self.what_fits(sequence, batch, work_per_token, device_per_token);
          },
          "sequence"_a, "batch"_a, "work_per_token"_a, "device_per_token"_a = 0.0)
      .def("counters", &Engine::counters)
      .def("count_asked_pieces", &Engine::count_asked_pieces)
      .def(
          "displaced_volumes",
          [](const Engine& self) {
            std::vector<std::string> out;
            for (const auto& volume : self.displaced_volumes()) out.push_back(volume.string());
            return out;
          },
          nb::call_guard<nb::gil_scoped_release>())
      .def("silence", &Engine::silence)
      .def("lateness", &Engine::lateness, nb::call_guard<nb::gil_scoped_release>())
      .def("where", &Engine::where)
      .def("timeline", &Engine::timeline)
      .def("graph", &Engine::graph, "format"_a)
      .def("refits", [](const Engine& self) {
        std::vector<std::tuple<std::string, std::uint64_t, double>> out;
        for (const auto& it : self.refits()) {
          out.emplace_back(self.layout().tensors()[it.tensor].spec.name, it.refits, it.error);
        }
        return out;
      });
}

/// spillway::journal::way_on().
void bind_lines(nb::module_& module) {
  using spillway::journal::KeptLine, spillway::journal::RunLines, spillway::journal::FoundShard;
  using spillway::journal::WayOn;
  bind_struct<KeptLine>(module, "KeptLine", "A line of a run, and the number of the shards that keep it.",
                        Field("number", &KeptLine::number), Field("world", &KeptLine::world));
  bind_struct<RunLines>(module, "RunLines", "The lines that run.json names.", Field("now", &RunLines::now),
                        Field("before", &RunLines::before));
  bind_struct<FoundShard>(module, "FoundShard", "A shard of which one process reaches the volumes of all paths.",
                          Field("world", &FoundShard::world), Field("shard", &FoundShard::shard),
                          Field("newest", &FoundShard::newest));
  nb::enum_<WayOn::Kind>(module, "WayKind", "How a world of processes goes on.")
      .value("open", WayOn::Kind::open)
      .value("redeal", WayOn::Kind::redeal)
      .value("nothing", WayOn::Kind::nothing)
      .value("missing", WayOn::Kind::missing);
  bind_struct<WayOn>(module, "WayOn", "How a world of processes goes on.", Field("kind", &WayOn::kind),
                     Field("line", &WayOn::line), Field("step", &WayOn::step), Field("missing", &WayOn::missing));
  module.def(
      "way_on",
      [](const RunLines& lines, const std::vector<FoundShard>& found, std::uint32_t world) {
        return spillway::journal::way_on(lines, found, world);
      },
      "lines"_a, "found"_a, "world"_a);
}

void bind_volumes(nb::module_& module) {
  using spillway::storage::Superblock, spillway::storage::ListedVolume;
  bind_struct<Superblock>(module, "Superblock", "The volume's own words about itself.", Field("run", &Superblock::run),
                          Field("shard", &Superblock::shard), Field("world", &Superblock::world),
                          Field("number", &Superblock::number), Field("paths", &Superblock::paths),
                          Field("set", &Superblock::set), Field("ready", &Superblock::ready));
  bind_struct<ListedVolume>(module, "ListedVolume", "A volume, whoever it belongs to.",
                            Field("file", &ListedVolume::file), Field("superblock", &ListedVolume::superblock));
  module.def(
      "list_volumes", [](const std::string& place) { return spillway::storage::list_volumes(place); }, "place"_a);
  module.def(
      "give_back_volume",
      [](const std::string& device, const std::string& run) {
        const nb::gil_scoped_release release;
        spillway::storage::give_back(device, run);
      },
      "device"_a, "run"_a);
}

}  // namespace

void bind_engine(nb::module_& module) {
  PyEngine engine(module, "Engine", "One run's state on its tiers, and the schedule that moves it.");
  engine.def(
      "__init__",
      [](Engine* self, const spillway::plan::Description& description, const EngineSettings& settings,
         std::shared_ptr<spillway::network::Served> network) {
        auto made = make_settings(settings);
        made.network = std::move(network);
        new (self) Engine(description, std::move(made));
      },
      "description"_a, "settings"_a, "network"_a.none() = nb::none());
  bind_engine_step(module, engine);
  bind_engine_store(module, engine);
  bind_telemetry(module, engine);
  bind_lines(module);
  bind_volumes(module);
}
