// spillway::Engine for Python: converts arrays and JSON, releases the GIL around every wait. No logic.
#include "spillway/engine.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <nlohmann/json.hpp>

#include "module.h"
#include "spillway/machine/profile_json.h"
#include "spillway/plan/json.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Array = nb::ndarray<nb::device::cpu, nb::c_contig>;
using Anywhere = nb::ndarray<nb::c_contig>;             // where visits compute
using Tokens = nb::ndarray<nb::ndim<2>, nb::c_contig>;  // there, too
using Ids = nb::ndarray<std::int64_t, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
using Names = std::map<std::string, std::string>;
using Release = nb::call_guard<nb::gil_scoped_release>;

template <class Any>
std::byte* bytes_of(const Any& array) {
  return static_cast<std::byte*>(array.data());
}

/// What a visit hands over, in the memory that it computes in.
template <class T = std::byte, class Any = Anywhere>
T* there(const spillway::Engine& engine, const Any& array, const char* what) {
  const auto gpu = engine.gpu();
  const bool fits = gpu ? array.device_type() == nb::device::cuda::value && array.device_id() == *gpu
                        : array.device_type() == nb::device::cpu::value;
  if (fits) return static_cast<T*>(array.data());
  throw spillway::Error(
      spillway::ErrorCode::bad_input,
      spillway::text(what, " lies on device type ", array.device_type(), ", number ", array.device_id(),
                     "; visits compute ", gpu ? spillway::text("on cuda:", *gpu) : "in host memory"));
}

template <class T>
T* there(const spillway::Engine& engine, const Anywhere& array, std::size_t count, const char* what) {
  if (array.dtype() != nb::dtype<T>() || array.size() != count) {
    throw spillway::Error(spillway::ErrorCode::bad_input,
                          spillway::text(what, ": ", count, " elements of another type are needed"));
  }
  return there<T>(engine, array, what);
}

const char* kind_name(spillway::plan::VisitKind kind) {
  static constexpr const char* kNames[] = {"embedding",     "forward",  "head_loss",
                                           "head_gradient", "backward", "embedding_backward"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// A visit with offsets into Engine.device_memory() instead of pointers, or into Engine.memory() where it is on the
/// host.
struct PyVisit {
  std::string kind = "end";
  std::size_t block = 0, slice = 0;
  std::uint64_t first_row = 0, rows = 0;
  std::uint64_t weights = 0, input = 0, output = 0, hidden_gradient = 0, accumulator = 0;
};

PyVisit convert(const spillway::Engine& engine, const spillway::Visit& visit) {
  const bool on_host = visit.kind == spillway::plan::VisitKind::embedding_backward;
  const auto base = (on_host ? engine.memory() : engine.device_memory()).data();
  const auto offset = [&](const void* at) {
    return at == nullptr ? 0 : static_cast<std::uint64_t>(static_cast<const std::byte*>(at) - base);
  };
  return {kind_name(visit.kind),    visit.block,          visit.slice,
          visit.first_row,          visit.rows,           offset(visit.weights),
          offset(visit.input),      offset(visit.output), offset(visit.hidden_gradient),
          offset(visit.accumulator)};
}

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
    out.nodes.push_back({.pretended = node.value("pretended", false), .limit = node.value("limit", 0.0)});
  }
  out.device = parse_device(json.value("device", nlohmann::json::object()), out);
  for (const auto& path : json.value("storage", nlohmann::json::array())) {
    const bool device = path.contains("device");
    out.storage.places.push_back({path.at(device ? "device" : "directory").get<std::string>(), device});
  }
  return out;
}

/// Hyperparameters by name, and "max_grad_norm".
spillway::StepUpdate parse_update(const std::map<std::string, double>& update) {
  spillway::StepUpdate out;
  for (const auto& [name, value] : update) {
    if (name == "learning_rate") {
      out.learning_rate = value;
    } else if (name == "weight_decay") {
      out.weight_decay = value;
    } else {
      (name == "max_grad_norm" ? out.max_grad_norm : out.others[name]) = value;
    }
  }
  return out;
}

spillway::Opening parse_opening(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  spillway::Opening out;
  out.reopen = json.value("reopen", false);
  out.if_found = json.value("if_found", false);
  out.at_least = json.value("at_least", std::uint64_t{0});
  if (json.contains("checkpoint")) out.checkpoint = json.at("checkpoint").get<std::string>();
  return out;
}

/// The paths that a function without arguments returns.
std::vector<std::filesystem::path> listed(const nb::callable& list) {
  const nb::gil_scoped_acquire acquire;
  const auto paths = nb::cast<std::vector<std::string>>(list());
  return {paths.begin(), paths.end()};
}

std::string to_json(const spillway::Recovery& recovery) {
  return nlohmann::json{
      {"found", recovery.found},          {"step", recovery.step},       {"updates", recovery.updates},
      {"payload", recovery.payload},      {"chunks", recovery.chunks},   {"replayed", recovery.replayed},
      {"steps", recovery.replayed_steps}, {"seconds", recovery.seconds}, {"phases", recovery.phases},
      {"words", recovery.words},          {"damage", recovery.damage}}
      .dump();
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

}  // namespace

void bind_engine(nb::module_& module) {
  using spillway::Engine;

  nb::class_<PyVisit>(module, "Visit", "One block's turn; offsets are bytes from the start of Engine.memory().")
      .def_ro("kind", &PyVisit::kind)
      .def_ro("block", &PyVisit::block)
      .def_ro("slice", &PyVisit::slice)
      .def_ro("first_row", &PyVisit::first_row)
      .def_ro("rows", &PyVisit::rows)
      .def_ro("weights", &PyVisit::weights)
      .def_ro("input", &PyVisit::input)
      .def_ro("output", &PyVisit::output)
      .def_ro("hidden_gradient", &PyVisit::hidden_gradient)
      .def_ro("accumulator", &PyVisit::accumulator);

  nb::class_<Engine>(module, "Engine", "One run's state on its tiers, and the schedule that moves it.")
      .def(
          "__init__",
          [](Engine* self, const std::string& description, const std::string& settings) {
            new (self) Engine(spillway::plan::parse_description(description), parse_settings(settings));
          },
          "description"_a, "settings"_a)
      .def("plan", &Engine::plan_json)
      .def(
          "what_fits",
          [](const Engine& self, std::uint64_t sequence, std::uint64_t batch, double work_per_token,
             double device_per_token) {
            const nb::gil_scoped_release release;
            return self.what_fits(sequence, batch, work_per_token, device_per_token);
          },
          "sequence"_a, "batch"_a, "work_per_token"_a, "device_per_token"_a = 0.0)
      .def(
          "start",
          [](Engine& self, const std::string& opening, const std::optional<nb::callable>& list_pinned) {
            auto from = parse_opening(opening);
            if (list_pinned) from.list_pinned = [&] { return listed(*list_pinned); };
            const nb::gil_scoped_release release;
            return to_json(self.start(from));
          },
          "opening"_a = "{}", "list_pinned"_a.none() = nb::none())
      .def(
          "read_back",
          [](Engine& self, const std::optional<std::string>& checkpoint) {
            const nb::gil_scoped_release release;
            return to_json(self.read_back(checkpoint));
          },
          "checkpoint"_a.none() = nb::none())
      .def("verify",
           [](const Engine& self, const std::vector<std::string>& pinned) {
             const nb::gil_scoped_release release;
             return to_json(self.verify({pinned.begin(), pinned.end()}));
           })
      .def("close", &Engine::close, Release())
      .def("give_up_volumes", &Engine::give_up_volumes)
      .def("memory",
           [](Engine& self) {
             const auto memory = self.memory();
             return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(memory.data(), {memory.size()}, nb::find(self));
           })
      .def("device_memory",
           [](Engine& self) {
             const auto memory = self.device_memory();
             const auto gpu = self.gpu();
             if (!gpu) {
               return nb::cast(
                   nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(memory.data(), {memory.size()}, nb::find(self)));
             }
             // NumPy has no arrays there; PyTorch is who computes.
             return nb::cast(nb::ndarray<nb::pytorch, std::uint8_t, nb::ndim<1>>(
                 memory.data(), {memory.size()}, nb::find(self), {}, nb::dtype<std::uint8_t>(), nb::device::cuda::value,
                 *gpu));
           })
      .def("tensor_offset", &Engine::tensor_offset)
      .def(
          "load_weights",
          [](Engine& self, const std::string& checkpoint, const Names& stored_names) {
            const nb::gil_scoped_release release;
            self.load_weights(checkpoint, stored_names);
          },
          "checkpoint"_a, "stored_names"_a)
      .def("store_tensor",
           [](Engine& self, std::size_t tensor, std::uint64_t first, const Floats& values) {
             const nb::gil_scoped_release release;
             self.store_tensor(tensor, first, {values.data(), values.size()});
           })
      .def("fetch_tensor",
           [](Engine& self, std::size_t tensor, std::uint64_t first, const Floats& values) {
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
      .def(
          "begin_step",
          [](Engine& self, const Ids& ids, std::vector<std::uint64_t> counts, bool training,
             const std::optional<std::map<std::string, double>>& update) {
            const nb::gil_scoped_release release;
            spillway::StepBegin begin{{ids.data(), ids.size()}, std::move(counts), training};
            if (update) begin.update = parse_update(*update);
            self.begin_step(begin);
          },
          "ids"_a, "counts"_a, "training"_a, "update"_a.none() = nb::none())
      .def(
          "embedding_forward",
          [](Engine& self, const std::optional<Array>& output) {
            const nb::gil_scoped_release release;
            self.embedding_forward(output ? bytes_of(*output) : nullptr);
          },
          "output"_a.none() = nb::none())
      .def("next_visit",
           [](Engine& self) {
             const nb::gil_scoped_release release;
             const auto visit = self.next_visit();
             return visit ? convert(self, *visit) : PyVisit{};
           })
      .def("end_visit", &Engine::end_visit, Release())
      .def("gradient",
           [](Engine& self, std::size_t tensor, const Anywhere& values, std::uint64_t micro_batch) {
             const nb::gil_scoped_release release;
             self.gradient(tensor, there(self, values, "a gradient"), micro_batch);
           })
      .def("learns_projectors", &Engine::learns_projectors)
      .def("learn_projectors",
           [](Engine& self, std::size_t tensor, const Anywhere& gradient) {
             const nb::gil_scoped_release release;
             const auto n = gradient.size();
             self.learn_projectors(tensor, {there<float>(self, gradient, n, "a gradient to learn from"), n});
           })
      .def("compress",
           [](Engine& self, std::size_t tensor, unsigned side, const Tokens& in, const Tokens& out) {
             const nb::gil_scoped_release release;
             self.compress(tensor, side, there(self, in, "tokens"), in.shape(1), in.shape(0),
                           there(self, out, "compressed tokens"));
           })
      .def("signs",
           [](const Engine& self, std::size_t tensor, const Floats& out) {
             self.signs(tensor, {out.data(), out.size()});
           })
      .def("sample",
           [](Engine& self, std::size_t tensor, const Anywhere& values) {
             const nb::gil_scoped_release release;
             self.sample(tensor, {there<float>(self, values, values.size(), "a sample"), values.size()});
           })
      .def("projectors",
           [](const Engine& self) {
             nlohmann::json out = nlohmann::json::array();
             for (const auto& it : self.projectors()) {
               out.push_back(
                   {{"tensor", self.layout().tensors()[it.tensor].spec.name}, {"fits", it.fits}, {"error", it.error}});
             }
             return out.dump();
           })
      .def("head_gradient",
           [](Engine& self, const Anywhere& values, std::uint64_t micro_batch) {
             const nb::gil_scoped_release release;
             self.head_gradient(there(self, values, "the head's gradient"), micro_batch);
           })
      .def("embedding_backward",
           [](Engine& self, const Array& values) {
             const nb::gil_scoped_release release;
             self.embedding_backward(bytes_of(values));
           })
      .def("end_step",
           [](Engine& self, const std::map<std::string, double>& update) {
             const auto step = parse_update(update);
             spillway::StepResult out;
             {
               const nb::gil_scoped_release release;
               out = self.end_step(step);
             }
             return std::map<std::string, double>{{"grad_norm", out.grad_norm},
                                                  {"clip", out.clip},
                                                  {"loss_scale", out.loss_scale},
                                                  {"skipped", out.skipped ? 1.0 : 0.0},
                                                  {"step", static_cast<double>(out.step)},
                                                  {"seconds", out.seconds},
                                                  {"stall_seconds", out.stall_seconds},
                                                  {"early", static_cast<double>(out.early)},
                                                  {"undone", static_cast<double>(out.undone)}};
           })
      .def("flush", &Engine::flush, Release())
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
      .def("take_back", &Engine::take_back)
      .def("loss_stats",
           [](Engine& self, const Anywhere& logits, std::uint64_t first_row, const Anywhere& labels,
              const Anywhere& maximum, const Anywhere& sum, const Anywhere& gold) {
             const nb::gil_scoped_release release;
             const auto tokens = logits.shape(0);
             self.loss_stats(there(self, logits, "logits"), tokens, logits.shape(1), first_row,
                             there<std::int64_t>(self, labels, tokens, "labels"),
                             there<float>(self, maximum, tokens, "maximum"), there<float>(self, sum, tokens, "sum"),
                             there<float>(self, gold, tokens, "gold"));
           })
      .def("loss_gradient",
           [](Engine& self, const Anywhere& logits, std::uint64_t first_row, const Anywhere& labels,
              const Anywhere& maximum, const Anywhere& log_sum, double scale) {
             const nb::gil_scoped_release release;
             const auto tokens = logits.shape(0);
             self.loss_gradient(there(self, logits, "logits"), tokens, logits.shape(1), first_row,
                                there<std::int64_t>(self, labels, tokens, "labels"),
                                there<float>(self, maximum, tokens, "maximum"),
                                there<float>(self, log_sum, tokens, "log_sum"), static_cast<float>(scale));
           })
      .def("loss_scale",
           [](const Engine& self) {
             const auto state = self.loss_scale();
             return std::make_pair(state.scale, state.good);
           })
      .def("set_loss_scale",
           [](Engine& self, double scale, std::int64_t good) {
             self.set_loss_scale({scale, good});
           })
      .def("counters", &Engine::counters)
      .def("silence", &Engine::silence)
      .def("where", &Engine::where)
      .def("timeline", &Engine::timeline);
}
