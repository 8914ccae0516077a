// spillway::EngineStore for Python: converts paths, releases the GIL around every wait. No logic.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "engine.h"
#include "struct.h"

using namespace nb::literals;

namespace {

using Names = std::map<std::string, std::string>;

std::vector<spillway::StoragePlace> places_of(const std::vector<std::string>& paths) {
  std::vector<spillway::StoragePlace> out;
  for (const std::filesystem::path path : paths) out.push_back({path, std::filesystem::is_block_file(path)});
  return out;
}

/// The directories that a function without arguments returns.
std::vector<std::filesystem::path> list_directories(const nb::callable& list) {
  const nb::gil_scoped_acquire acquire;
  const auto paths = nb::cast<std::vector<std::string>>(list());
  return {paths.begin(), paths.end()};
}

void bind_answers(nb::module_& module) {
  using spillway::OpenOptions, spillway::Recovery, spillway::Verification, spillway::Damage, spillway::DurableStep;
  bind_struct<OpenOptions>(module, "OpenOptions", "Where a run begins; by default anew.",  //
                           Field("reopen", &OpenOptions::reopen), Field("if_found", &OpenOptions::if_found),
                           Field("at_least", &OpenOptions::at_least), Field("known_step", &OpenOptions::known_step),
                           Field("at_most", &OpenOptions::at_most), Field("line", &OpenOptions::line),
                           Field("checkpoint", &OpenOptions::checkpoint));
  using Phases = Recovery::Phases;
  bind_struct<Phases>(module, "RecoveryPhases", "Parts of the seconds of a recovery.", Field("memory", &Phases::memory),
                      Field("opening", &Phases::opening), Field("records", &Phases::records),
                      Field("reading", &Phases::reading), Field("replay", &Phases::replay));
  bind_struct<Recovery>(module, "Recovery", "State that the paths held.", Field("has_step", &Recovery::has_step),
                        Field("step", &Recovery::step), Field("updates", &Recovery::updates),
                        Field("payload", &Recovery::payload), Field("chunks", &Recovery::chunks),
                        Field("replayed", &Recovery::replayed), Field("replayed_steps", &Recovery::replayed_steps),
                        Field("seconds", &Recovery::seconds), Field("phases", &Recovery::phases),
                        Field("damage", &Recovery::damage), Field("lost_until", &Recovery::lost_until))
      .def_prop_ro("words", &Recovery::words);
  bind_struct<Damage>(module, "Damage", "Bytes that are not those that were written.", Field("path", &Damage::path),
                      Field("file", &Damage::file), Field("offset", &Damage::offset), Field("bytes", &Damage::bytes),
                      Field("what", &Damage::what));
  bind_struct<Verification>(module, "Verification", "Whether every byte is the one that was written.",
                            Field("bytes", &Verification::bytes), Field("step", &Verification::step),
                            Field("damage", &Verification::damage));
  bind_struct<DurableStep>(module, "DurableStep", "A step that is durable, and its line of the run.",
                           Field("step", &DurableStep::step), Field("line", &DurableStep::line));
}

void bind_open(PyEngine& engine) {
  engine
      .def(
          "start",
          [](Engine& self, const std::optional<spillway::OpenOptions>& opening,
             const std::optional<nb::typed<nb::callable, std::vector<std::string>()>>& list_pinned) {
            auto from = opening.value_or(spillway::OpenOptions{});
            if (list_pinned) from.pinned = [&] { return list_directories(*list_pinned); };
            const nb::gil_scoped_release release;
            return self.start(from);
          },
          "opening"_a.none() = nb::none(), "list_pinned"_a.none() = nb::none())
      .def(
          "read_back",
          [](Engine& self, const std::optional<std::string>& checkpoint, std::int64_t at_most) {
            const nb::gil_scoped_release release;
            return self.read_back(checkpoint, at_most);
          },
          "checkpoint"_a.none() = nb::none(), "at_most"_a = std::numeric_limits<std::int64_t>::max())
      .def(
          "verify",
          [](const Engine& self, const std::vector<std::string>& pinned) {
            const nb::gil_scoped_release release;
            return self.verify({pinned.begin(), pinned.end()});
          },
          "pinned"_a)
      .def("durable_step", nb::overload_cast<>(&Engine::durable_step, nb::const_), WithoutGil())
      .def(
          "durable_step_of",
          [](const Engine& self, std::size_t world, std::size_t shard, const std::vector<std::string>& places) {
            const nb::gil_scoped_release release;
            return self.durable_step({{world, shard}, places_of(places)});
          },
          "world"_a, "shard"_a, "places"_a)
      .def(
          "redeal",
          [](Engine& self, std::int64_t step, std::vector<std::size_t> readers,
             const std::vector<std::vector<std::string>>& places) {
            const nb::gil_scoped_release release;
            spillway::RedealOptions options{.step = step, .readers = std::move(readers), .places = {}};
            for (const auto& of_shard : places) options.places.push_back(places_of(of_shard));
            return self.redeal(options);
          },
          "step"_a, "readers"_a, "places"_a)
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
      .def(
          "store_tensor",
          [](Engine& self, std::size_t tensor, std::uint64_t first, const EngineFloats& values) {
            const nb::gil_scoped_release release;
            self.store_tensor(tensor, first, {values.data(), values.size()});
          },
          "tensor"_a, "first"_a, "values"_a)
      .def(
          "measure_tensor",
          [](Engine& self, std::size_t tensor, std::uint64_t first, const EngineFloats& values) {
            const nb::gil_scoped_release release;
            self.measure_tensor(tensor, first, {values.data(), values.size()});
          },
          "tensor"_a, "first"_a, "values"_a)
      .def(
          "fetch_tensor",
          [](Engine& self, std::size_t tensor, std::uint64_t first, const EngineFloats& values) {
            const nb::gil_scoped_release release;
            self.fetch_tensor(tensor, first, {values.data(), values.size()});
          },
          "tensor"_a, "first"_a, "values"_a)
      .def(
          "save_weights",
          [](Engine& self, const std::string& directory, std::uint64_t max_shard, const Names& stored_names) {
            const nb::gil_scoped_release release;
            self.save_weights(directory, max_shard, stored_names);
          },
          "directory"_a, "max_shard"_a, "stored_names"_a = Names{})
      .def(
          "save_state",
          [](Engine& self, const std::string& directory, std::int64_t) {
            const nb::gil_scoped_release release;
            self.save_state(directory);
          },
          "directory"_a, "step"_a)
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
      .def(
          "commit",
          [](Engine& self, const std::string& payload) {
            const nb::gil_scoped_release release;
            self.commit(payload);
          },
          "payload"_a)
      .def("set_step", &Engine::set_step, "step"_a)
      .def(
          "save_manifest",
          [](Engine& self, const std::string& directory) {
            const nb::gil_scoped_release release;
            self.save_manifest(directory);
          },
          "directory"_a)
      .def(
          "release_manifest",
          [](Engine& self, const nb::bytes& manifest) {
            const std::span bytes(reinterpret_cast<const std::byte*>(manifest.c_str()), manifest.size());
            const nb::gil_scoped_release release;
            self.release_manifest(bytes);
          },
          "content"_a)
      .def(
          "leave",
          [](Engine& self, const std::string& payload) {
            std::vector<std::byte> out;
            {
              const nb::gil_scoped_release release;
              out = self.leave(payload);
            }
            return nb::bytes(reinterpret_cast<const char*>(out.data()), out.size());
          },
          "payload"_a)
      .def("take_back", &Engine::take_back);
}

}  // namespace

void bind_engine_store(nb::module_& module, PyEngine& engine) {
  bind_answers(module);
  bind_open(engine);
  bind_state(engine);
  bind_durability(engine);
}
