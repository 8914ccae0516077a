// spillway::EngineStore for Python: converts JSON and paths, releases the GIL around every wait. No logic.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <nlohmann/json.hpp>

#include "engine.h"

using namespace nb::literals;

namespace {

using Names = std::map<std::string, std::string>;

spillway::OpenOptions parse_open_options(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  spillway::OpenOptions out;
  out.reopen = json.value("reopen", false);
  out.if_found = json.value("if_found", false);
  out.at_least = json.value("at_least", std::uint64_t{0});
  out.known_step = json.value("known_step", std::uint64_t{0});
  out.at_most = json.value("at_most", out.at_most);
  out.line = json.value("line", out.line);
  if (json.contains("checkpoint")) out.checkpoint = json.at("checkpoint").get<std::string>();
  return out;
}

std::vector<spillway::StoragePlace> parse_places(const nlohmann::json& list) {
  std::vector<spillway::StoragePlace> out;
  for (const auto& place : list) {
    const std::filesystem::path path = place.get<std::string>();
    out.push_back({path, std::filesystem::is_block_file(path)});
  }
  return out;
}

spillway::ShardVolumes parse_shard(const nlohmann::json& json) {
  return {{json.at("world").get<std::size_t>(), json.at("shard").get<std::size_t>()}, parse_places(json.at("places"))};
}

spillway::RedealOptions parse_redeal(const nlohmann::json& json) {
  spillway::RedealOptions out;
  json.at("step").get_to(out.step);
  json.at("readers").get_to(out.readers);
  for (const auto& places : json.at("places")) out.places.push_back(parse_places(places));
  return out;
}

std::string to_json(const spillway::DurableStep& newest) {
  return nlohmann::json{{"step", newest.step}, {"line", newest.line}}.dump();
}

/// The paths that a function without arguments returns.
std::vector<std::filesystem::path> listed(const nb::callable& list) {
  const nb::gil_scoped_acquire acquire;
  const auto paths = nb::cast<std::vector<std::string>>(list());
  return {paths.begin(), paths.end()};
}

std::string to_json(const spillway::Recovery& recovery) {
  const auto& seconds = recovery.phases;
  const nlohmann::json phases{{"memory", seconds.memory},
                              {"opening", seconds.opening},
                              {"records", seconds.records},
                              {"reading", seconds.reading},
                              {"replay", seconds.replay}};
  nlohmann::json out{{"found", recovery.has_step},       {"step", recovery.step},       {"updates", recovery.updates},
                     {"payload", recovery.payload},      {"chunks", recovery.chunks},   {"replayed", recovery.replayed},
                     {"steps", recovery.replayed_steps}, {"seconds", recovery.seconds}, {"phases", phases},
                     {"words", recovery.words()},        {"damage", recovery.damage}};
  if (recovery.lost_until) out["lost_until"] = *recovery.lost_until;
  return out.dump();
}

std::string to_json(const spillway::Verification& verification) {
  nlohmann::json out{{"bytes", verification.bytes}, {"damage", nlohmann::json::array()}, {"step", nullptr}};
  if (verification.step) out["step"] = *verification.step;
  for (const auto& it : verification.damage) {
    out["damage"].push_back(
        {{"path", it.path}, {"file", it.file.string()}, {"offset", it.offset}, {"bytes", it.bytes}, {"what", it.what}});
  }
  return out.dump();
}

void bind_open(PyEngine& engine) {
  engine
      .def(
          "start",
          [](Engine& self, const std::string& open_options, const std::optional<nb::callable>& list_pinned) {
            auto from = parse_open_options(open_options);
            if (list_pinned) from.pinned = [&] { return listed(*list_pinned); };
            const nb::gil_scoped_release release;
            return to_json(self.start(from));
          },
          "opening"_a = "{}", "list_pinned"_a.none() = nb::none())
      .def(
          "read_back",
          [](Engine& self, const std::optional<std::string>& checkpoint, std::int64_t at_most) {
            const nb::gil_scoped_release release;
            return to_json(self.read_back(checkpoint, at_most));
          },
          "checkpoint"_a.none() = nb::none(), "at_most"_a = std::numeric_limits<std::int64_t>::max())
      .def("verify",
           [](const Engine& self, const std::vector<std::string>& pinned) {
             const nb::gil_scoped_release release;
             return to_json(self.verify({pinned.begin(), pinned.end()}));
           })
      .def("durable_step",
           [](const Engine& self) {
             const nb::gil_scoped_release release;
             return to_json(self.durable_step());
           })
      .def("durable_step_of",
           [](const Engine& self, const std::string& shard) {
             const auto parsed = parse_shard(nlohmann::json::parse(shard));
             const nb::gil_scoped_release release;
             return to_json(self.durable_step(parsed));
           })
      .def("redeal",
           [](Engine& self, const std::string& options) {
             const auto parsed = parse_redeal(nlohmann::json::parse(options));
             const nb::gil_scoped_release release;
             return to_json(self.redeal(parsed));
           })
      .def("next_vote", &Engine::next_vote, WithoutGil())
      .def("end_vote", &Engine::end_vote, "step"_a, "minimum"_a, "error"_a = "", WithoutGil())
      .def("close", &Engine::close, WithoutGil())
      .def("give_up_volumes", &Engine::give_up_volumes);
}

void bind_state(PyEngine& engine) {
  engine
      .def(
          "load_weights",
          [](Engine& self, const std::string& checkpoint, const Names& stored_names) {
            const nb::gil_scoped_release release;
            self.load_weights(checkpoint, stored_names);
          },
          "checkpoint"_a, "stored_names"_a)
      .def("store_tensor",
           [](Engine& self, std::size_t tensor, std::uint64_t first, const EngineFloats& values) {
             const nb::gil_scoped_release release;
             self.store_tensor(tensor, first, {values.data(), values.size()});
           })
      .def("measure_tensor",
           [](Engine& self, std::size_t tensor, std::uint64_t first, const EngineFloats& values) {
             const nb::gil_scoped_release release;
             self.measure_tensor(tensor, first, {values.data(), values.size()});
           })
      .def("fetch_tensor",
           [](Engine& self, std::size_t tensor, std::uint64_t first, const EngineFloats& values) {
             const nb::gil_scoped_release release;
             self.fetch_tensor(tensor, first, {values.data(), values.size()});
           })
      .def(
          "save_weights",
          [](Engine& self, const std::string& directory, std::uint64_t max_shard, const Names& stored_names) {
            const nb::gil_scoped_release release;
            self.save_weights(directory, max_shard, stored_names);
          },
          "directory"_a, "max_shard"_a, "stored_names"_a = Names{})
      .def("save_state",
           [](Engine& self, const std::string& directory, std::int64_t) {
             const nb::gil_scoped_release release;
             self.save_state(directory);
           })
      .def(
          "load_state",
          [](Engine& self, const std::string& directory, const std::string& weights, std::int64_t step,
             const Names& stored_names) {
            const nb::gil_scoped_release release;
            return std::string(name_of(self.load_state(directory, weights, step, stored_names)));
          },
          "directory"_a, "weights"_a, "step"_a, "stored_names"_a = Names{})
      .def("flush", &Engine::flush, WithoutGil());
}

void bind_durability(PyEngine& engine) {
  engine
      .def("commit",
           [](Engine& self, const std::string& payload) {
             const nb::gil_scoped_release release;
             self.commit(payload);
           })
      .def("set_step", &Engine::set_step)
      .def("save_manifest",
           [](Engine& self, const std::string& directory) {
             const nb::gil_scoped_release release;
             self.save_manifest(directory);
           })
      .def("release_manifest",
           [](Engine& self, const nb::bytes& manifest) {
             const std::span bytes(reinterpret_cast<const std::byte*>(manifest.c_str()), manifest.size());
             const nb::gil_scoped_release release;
             self.release_manifest(bytes);
           })
      .def("leave",
           [](Engine& self, const std::string& payload) {
             std::vector<std::byte> out;
             {
               const nb::gil_scoped_release release;
               out = self.leave(payload);
             }
             return nb::bytes(reinterpret_cast<const char*>(out.data()), out.size());
           })
      .def("take_back", &Engine::take_back);
}

}  // namespace

void bind_engine_store(PyEngine& engine) {
  bind_open(engine);
  bind_state(engine);
  bind_durability(engine);
}
