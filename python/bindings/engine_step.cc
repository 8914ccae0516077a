// spillway::EngineStep for Python: converts arrays, releases the GIL around every wait. No logic.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "passes.h"
#include "struct.h"

using namespace nb::literals;

namespace {

using Array = nb::ndarray<nb::device::cpu, nb::c_contig>;
using PassTokens = nb::ndarray<nb::ndim<2>, nb::c_contig>;  // where passes compute
using PassLogits = nb::ndarray<nb::ndim<2>>;                // there, too: a token's lie side by side
using Ids = nb::ndarray<std::int64_t, nb::ndim<1>, nb::device::cpu, nb::c_contig>;

template <class Any>
std::byte* bytes_of(const Any& array) {
  return static_cast<std::byte*>(array.data());
}

/// A block pass with offsets into Engine.device_memory() instead of pointers, or into Engine.memory() where it is on
/// the host.
struct PyPass {
  std::string kind = "end";
  std::size_t block = 0, slice = 0;
  std::uint64_t first_row = 0, rows = 0;
  std::uint64_t weights = 0, input = 0, output = 0, hidden_gradient = 0, accumulator = 0, spilled = 0;
  std::uint64_t spilled_bytes = 0, features = 0, feature_bytes = 0;
};

PyPass convert(const Engine& engine, const spillway::BlockPass& pass) {
  const auto& kind = traits(pass.kind);
  const auto base = (kind.of_rows ? engine.memory() : engine.device_memory()).data();
  const auto offset = [&](const void* at) {
    return at == nullptr ? 0 : static_cast<std::uint64_t>(static_cast<const std::byte*>(at) - base);
  };
  return {kind.key,
          pass.block,
          pass.slice,
          pass.first_row,
          pass.rows,
          offset(pass.weights),
          offset(pass.input),
          offset(pass.output),
          offset(pass.hidden_gradient),
          offset(pass.accumulator),
          offset(pass.spilled),
          pass.spilled_bytes,
          offset(pass.features),
          pass.feature_bytes};
}

void bind_values(nb::module_& module) {
  using spillway::StepUpdate, spillway::StepResult;
  bind_struct<StepUpdate>(
      module, "StepUpdate", "Values of one update.", Field("learning_rate", &StepUpdate::learning_rate),
      Field("weight_decay", &StepUpdate::weight_decay), Field("max_grad_norm", &StepUpdate::max_grad_norm),
      Field("skip", &StepUpdate::skip), Field("hyperparameters", &StepUpdate::hyperparameters));
  bind_struct<StepResult>(module, "StepResult", "The outcome of a step.", Field("grad_norm", &StepResult::grad_norm),
                          Field("clip", &StepResult::clip), Field("loss_scale", &StepResult::loss_scale),
                          Field("skipped", &StepResult::skipped), Field("step", &StepResult::step),
                          Field("seconds", &StepResult::seconds), Field("stall_seconds", &StepResult::stall_seconds),
                          Field("early", &StepResult::early), Field("undone", &StepResult::undone));
}

/// Memory that passes compute in, without a copy. NumPy has no arrays on a GPU, so a GPU's is a tensor of PyTorch.
template <class T>
nb::object share(const Engine& engine, std::span<T> memory) {
  const auto owner = nb::find(engine);
  if (const auto gpu = engine.gpu()) {
    return nb::cast(nb::ndarray<nb::pytorch, T, nb::ndim<1>>(memory.data(), {memory.size()}, owner, {}, nb::dtype<T>(),
                                                             nb::device::cuda::value, *gpu));
  }
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(memory.data(), {memory.size()}, owner));
}

void bind_passes(PyEngine& engine) {
  engine
      .def(
          "begin_step",
          [](Engine& self, const Ids& ids, std::vector<std::uint64_t> counts, bool training,
             std::optional<spillway::StepUpdate> update, bool digests, bool trial) {
            const nb::gil_scoped_release release;
            self.begin_step({.ids = {ids.data(), ids.size()},
                             .counts = std::move(counts),
                             .training = training,
                             .update = std::move(update),
                             .digests = digests,
                             .trial = trial});
          },
          "ids"_a, "counts"_a, "training"_a, "update"_a.none() = nb::none(), "digests"_a = false, "trial"_a = false)
      .def(
          "embedding_forward",
          [](Engine& self, const std::optional<Array>& output) {
            const nb::gil_scoped_release release;
            self.embedding_forward(output ? bytes_of(*output) : nullptr);
          },
          "output"_a.none() = nb::none())
      .def("next_pass",
           [](Engine& self) {
             const nb::gil_scoped_release release;
             const auto pass = self.next_pass();
             return pass ? convert(self, *pass) : PyPass{};
           })
      .def("end_pass", &Engine::end_pass, WithoutGil())
      .def("memory",
           [](Engine& self) {
             const auto memory = self.memory();
             return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(memory.data(), {memory.size()}, nb::find(self));
           })
      .def("device_memory",
           [](Engine& self) {
             const auto memory = self.device_memory();
             return share(self, std::span(reinterpret_cast<std::uint8_t*>(memory.data()), memory.size()));
           })
      .def("tensor_offset", &Engine::tensor_offset, "tensor"_a)
      .def("ask_pieces", &Engine::ask_pieces, "tensor"_a, "first"_a, "count"_a, WithoutGil())
      .def("convert_pieces", &Engine::convert_pieces, "tensor"_a, "first"_a, "count"_a, WithoutGil());
}

void bind_gradients(PyEngine& engine) {
  engine
      .def(
          "gradient",
          [](Engine& self, std::size_t tensor, const Anywhere& values, std::uint64_t micro_batch) {
            const nb::gil_scoped_release release;
            self.gradient(tensor, there(self, values, "a gradient"), micro_batch);
          },
          "tensor"_a, "values"_a, "micro_batch"_a)
      .def("can_lend_sums", &Engine::can_lend_sums)
      .def(
          "lend_sum",
          [](Engine& self, std::size_t tensor, std::uint64_t micro_batch) {
            spillway::execute::SumLoan loan;
            {
              const nb::gil_scoped_release release;
              loan = self.lend_sum(tensor, micro_batch);
            }
            return std::make_pair(share(self, loan.sum), loan.first);
          },
          "tensor"_a, "micro_batch"_a)
      .def("end_sum", &Engine::end_sum, WithoutGil(), "tensor"_a, "micro_batch"_a)
      .def(
          "head_gradient",
          [](Engine& self, const Anywhere& values, std::uint64_t micro_batch) {
            const nb::gil_scoped_release release;
            self.head_gradient(there(self, values, "the head's gradient"), micro_batch);
          },
          "values"_a, "micro_batch"_a)
      .def(
          "embedding_backward",
          [](Engine& self, const Array& values) {
            const nb::gil_scoped_release release;
            self.embedding_backward(bytes_of(values));
          },
          "values"_a);
}

void bind_reduced(PyEngine& engine) {
  engine.def("wants_whole_gradient", &Engine::wants_whole_gradient, "tensor"_a, "micro_batch"_a)
      .def(
          "whole_gradient",
          [](Engine& self, std::size_t tensor, const Anywhere& gradient) {
            const nb::gil_scoped_release release;
            const auto n = gradient.size();
            self.whole_gradient(tensor, {there<float>(self, gradient, n, "a gradient to learn from"), n});
          },
          "tensor"_a, "gradient"_a)
      .def(
          "compress",
          [](Engine& self, std::size_t tensor, unsigned side, const PassTokens& in, const PassTokens& out) {
            const nb::gil_scoped_release release;
            self.compress(tensor, side, there(self, in, "tokens"), in.shape(1), in.shape(0),
                          there(self, out, "compressed tokens"));
          },
          "tensor"_a, "side"_a, "tokens"_a, "out"_a)
      .def(
          "signs",
          [](const Engine& self, std::size_t tensor, const EngineFloats& out) {
            self.signs(tensor, {out.data(), out.size()});
          },
          "tensor"_a, "out"_a)
      .def(
          "sample",
          [](Engine& self, std::size_t tensor, const Anywhere& values, std::uint64_t micro_batch) {
            const nb::gil_scoped_release release;
            self.sample(tensor, {there<float>(self, values, values.size(), "a sample"), values.size()}, micro_batch);
          },
          "tensor"_a, "values"_a, "micro_batch"_a);
}

spillway::LogitsSlice slice_of(const Engine& engine, const PassLogits& logits, std::uint64_t first_row,
                               const Anywhere& labels) {
  if (logits.stride(1) != 1) throw spillway::Error(spillway::ErrorCode::bad_input, "logits of a token are apart");
  const auto tokens = logits.shape(0);
  return {there(engine, logits, "logits"),
          tokens,
          logits.shape(1),
          static_cast<std::uint64_t>(logits.stride(0)),
          first_row,
          there<std::int64_t>(engine, labels, tokens, "labels")};
}

void bind_losses(PyEngine& engine) {
  engine
      .def(
          "loss_stats",
          [](Engine& self, const PassLogits& logits, std::uint64_t first_row, const Anywhere& labels,
             const Anywhere& maximum, const Anywhere& sum, const Anywhere& gold) {
            const nb::gil_scoped_release release;
            const auto tokens = logits.shape(0);
            self.loss_stats(slice_of(self, logits, first_row, labels), there<float>(self, maximum, tokens, "maximum"),
                            there<float>(self, sum, tokens, "sum"), there<float>(self, gold, tokens, "gold"));
          },
          "logits"_a, "first_row"_a, "labels"_a, "maximum"_a, "sum"_a, "gold"_a)
      .def(
          "loss_gradient",
          [](Engine& self, const PassLogits& logits, std::uint64_t first_row, const Anywhere& labels,
             const Anywhere& maximum, const Anywhere& log_sum, double scale) {
            const nb::gil_scoped_release release;
            const auto tokens = logits.shape(0);
            self.loss_gradient(slice_of(self, logits, first_row, labels),
                               there<float>(self, maximum, tokens, "maximum"),
                               there<float>(self, log_sum, tokens, "log_sum"), static_cast<float>(scale));
          },
          "logits"_a, "first_row"_a, "labels"_a, "maximum"_a, "log_sum"_a, "scale"_a)
      .def("loss_scale",
           [](const Engine& self) {
             const auto state = self.loss_scale();
             return std::make_pair(state.scale, state.good);
           })
      .def(
          "set_loss_scale",
          [](Engine& self, double scale, std::int64_t good) {
            self.set_loss_scale({scale, good});
          },
          "scale"_a, "good"_a);
}

void bind_ends(nb::module_& module, PyEngine& engine) {
  nb::class_<spillway::StepDigest>(module, "StepDigest", "The digest of bytes that a pass has read or made.")
      .def_ro("name", &spillway::StepDigest::name)
      .def_ro("is_weight", &spillway::StepDigest::is_weight)
      .def_ro("value", &spillway::StepDigest::value);
  engine
      .def(
          "norm", [](Engine& self) { return self.norm().sum; }, WithoutGil())
      .def("abandon_step", &Engine::abandon_step, WithoutGil())
      .def("end_step", &Engine::end_step, WithoutGil(), "update"_a)
      .def("take_digests", &Engine::take_digests, WithoutGil())
      .def(
          "digest",
          [](Engine& self, const Array& values) {
            const nb::gil_scoped_release release;
            return self.digest({bytes_of(values), values.nbytes()});
          },
          "values"_a);
}

}  // namespace

void bind_engine_step(nb::module_& module, PyEngine& engine) {
  nb::class_<PyPass>(module, "BlockPass",
                     "A block's forward or backward pass; offsets are bytes from the start of Engine.memory().")
      .def_ro("kind", &PyPass::kind)
      .def_ro("block", &PyPass::block)
      .def_ro("slice", &PyPass::slice)
      .def_ro("first_row", &PyPass::first_row)
      .def_ro("rows", &PyPass::rows)
      .def_ro("weights", &PyPass::weights)
      .def_ro("input", &PyPass::input)
      .def_ro("output", &PyPass::output)
      .def_ro("hidden_gradient", &PyPass::hidden_gradient)
      .def_ro("accumulator", &PyPass::accumulator)
      .def_ro("spilled", &PyPass::spilled)
      .def_ro("spilled_bytes", &PyPass::spilled_bytes)
      .def_ro("features", &PyPass::features)
      .def_ro("feature_bytes", &PyPass::feature_bytes);
  bind_values(module);
  bind_passes(engine);
  bind_gradients(engine);
  bind_reduced(engine);
  bind_losses(engine);
  bind_fused(engine);
  bind_ends(module, engine);
}
