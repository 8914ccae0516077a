// spillway::Engine for Python: settings from JSON, and what EngineTelemetry tells. No logic.
#include "engine.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <array>
#include <nlohmann/json.hpp>

#include "module.h"
#include "spillway/journal/lines.h"
#include "spillway/machine/profile_json.h"
#include "spillway/network/served.h"
#include "spillway/plan/json.h"
#include "spillway/storage/listing.h"
#include "spillway/storage/volume.h"

using namespace nb::literals;

namespace {

spillway::execute::DeviceOptions parse_device(const nlohmann::json& json, const spillway::Settings& settings) {
  spillway::execute::DeviceOptions out;
  out.name = json.value("name", out.name);
  out.stream = reinterpret_cast<void*>(json.value("stream", std::uintptr_t{0}));
  if (settings.budget.device) out.simulated.memory = settings.budget.device->capacity;
  if (json.value("bounded", false)) {
    out.simulated.to_device = settings.rates.to_device;
    out.simulated.from_device = settings.rates.from_device;
    out.simulated.latency = settings.rates.copy_latency;
    out.simulated.update = settings.rates.device_update;
  }
  return out;
}

spillway::execute::NodeOptions parse_node(const nlohmann::json& node) {
  spillway::execute::NodeOptions out{.limit = node.value("limit", 0.0)};
  const auto kind = node.value("kind", "numa");
  if (kind == "fake" || kind == "dram") out.backing = spillway::memory::anywhere();
  if (kind == "file") out.backing = spillway::memory::in_file(node.at("directory").get<std::string>());
  return out;
}

spillway::Settings parse_settings(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  spillway::Settings out;
  out.budget = spillway::plan::parse_budget(text);
  const auto profile = json.value("profile", nlohmann::json::object());
  out.rates = spillway::plan::parse_rates(
      text, profile.empty() ? spillway::machine::Profile{} : spillway::machine::from_json(profile.dump(), "profile"));
  out.threads = json.value("threads", 1U);
  out.run = json.value("run", out.run);
  out.storage.overwrite = json.value("overwrite", false);
  out.storage.keep = json.value("keep", false);
  out.storage.erase = json.value("erase", false);
  for (const auto& node : json.value("nodes", nlohmann::json::array())) {
    out.nodes.push_back(parse_node(node));
  }
  out.device = parse_device(json.value("device", nlohmann::json::object()), out);
  for (const auto& path : json.value("storage", nlohmann::json::array())) {
    const bool device = path.contains("device");
    out.storage.places.push_back({path.at(device ? "device" : "directory").get<std::string>(), device});
  }
  return out;
}

void bind_telemetry(PyEngine& engine) {
  engine.def("plan", &Engine::plan_json)
      .def(
          "what_fits",
          [](const Engine& self, std::uint64_t sequence, std::uint64_t batch, double work_per_token,
             double device_per_token) {
            const nb::gil_scoped_release release;
            return self.what_fits(sequence, batch, work_per_token, device_per_token);
          },
          "sequence"_a, "batch"_a, "work_per_token"_a, "device_per_token"_a = 0.0)
      .def("counters", &Engine::counters)
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
        nlohmann::json out = nlohmann::json::array();
        for (const auto& it : self.refits()) {
          out.push_back(
              {{"tensor", self.layout().tensors()[it.tensor].spec.name}, {"fits", it.refits}, {"error", it.error}});
        }
        return out.dump();
      });
}

spillway::journal::KeptLine parse_line(const nlohmann::json& json) {
  return {json.at("line").get<std::uint64_t>(), json.at("world").get<std::uint32_t>()};
}

/// spillway::journal::way_on().
std::string way_on(const std::string& lines, const std::string& found, std::uint32_t world) {
  constexpr std::array kKinds{"open", "redeal", "nothing", "missing"};
  const auto json = nlohmann::json::parse(lines);
  spillway::journal::RunLines said;
  said.now = parse_line(json.at("now"));
  if (!json.at("before").is_null()) said.before = parse_line(json.at("before"));
  std::vector<spillway::journal::FoundShard> shards;
  for (const auto& it : nlohmann::json::parse(found)) {
    auto& shard = shards.emplace_back();
    it.at("world").get_to(shard.world);
    it.at("shard").get_to(shard.shard);
    it.at("step").get_to(shard.newest.step);
    it.at("line").get_to(shard.newest.line);
  }
  const auto way = spillway::journal::way_on(said, shards, world);
  return nlohmann::json{{"kind", kKinds.at(static_cast<std::size_t>(way.kind))},
                        {"from", {{"line", way.from.number}, {"world", way.from.world}}},
                        {"step", way.step},
                        {"missing", way.missing}}
      .dump();
}

std::string list_volumes(const std::string& place) {
  nlohmann::json out = nlohmann::json::array();
  for (const auto& [file, it] : spillway::storage::list_volumes(place)) {
    out.push_back({{"file", file.string()},
                   {"run", it.run},
                   {"shard", it.shard},
                   {"world", it.world},
                   {"path", it.number},
                   {"paths", it.paths},
                   {"set", it.set},
                   {"ready", it.ready}});
  }
  return out.dump();
}

}  // namespace

void bind_engine(nb::module_& module) {
  PyEngine engine(module, "Engine", "One run's state on its tiers, and the schedule that moves it.");
  engine.def(
      "__init__",
      [](Engine* self, const std::string& description, const std::string& settings,
         std::shared_ptr<spillway::network::Served> network) {
        auto parsed = parse_settings(settings);
        parsed.network = std::move(network);
        new (self) Engine(spillway::plan::parse_description(description), std::move(parsed));
      },
      "description"_a, "settings"_a, "network"_a.none() = nb::none());
  bind_engine_step(module, engine);
  bind_engine_store(engine);
  bind_telemetry(engine);
  module.def("list_volumes", &list_volumes, "place"_a);
  module.def(
      "give_back_volume",
      [](const std::string& device, const std::string& run) {
        const nb::gil_scoped_release release;
        spillway::storage::give_back(device, run);
      },
      "device"_a, "run"_a);
  module.def("way_on", &way_on, "lines"_a, "found"_a, "world"_a);
}
