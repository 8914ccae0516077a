// spillway::Optimizer for Python: converts, releases the GIL. No logic.
#include "spillway/optimizer.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "module.h"
#include "spillway/kernels/moments.h"
#include "spillway/optim/step.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Bytes1d = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
using Release = nb::call_guard<nb::gil_scoped_release>;
/// Tensor, addresses of weight and gradient, hyperparameters, gradient scale, step.
using PyUpdate =
    std::tuple<std::size_t, std::uintptr_t, std::uintptr_t, spillway::optim::NamedValues, float, std::int64_t>;

spillway::Optimizer* make(const std::vector<std::tuple<std::string, std::uint64_t, std::string>>& tensors,
                          const std::string& optimizer, const std::string& format, std::uint64_t seed, unsigned threads,
                          const std::vector<std::pair<std::string, bool>>& storage, std::uint64_t staging,
                          bool overwrite) {
  std::vector<spillway::OptimizerTensor> specs;
  for (const auto& [name, elements, type] : tensors) {
    specs.push_back({name, elements, spillway::state::parse_compute_type(type)});
  }
  spillway::OptimizerSettings settings;
  settings.optimizer = &spillway::optim::parse(optimizer);
  settings.format = spillway::state::parse_format(format);
  settings.seed = seed;
  settings.threads = threads;
  settings.staging = staging;
  settings.overwrite = overwrite;
  for (const auto& [path, device] : storage) settings.storage.push_back({path, device});
  const nb::gil_scoped_release release;
  return new spillway::Optimizer(std::move(specs), std::move(settings));  // nanobind takes it
}

std::vector<spillway::Optimizer::Update> updates_of(const spillway::Optimizer& self,
                                                    const std::vector<PyUpdate>& updates) {
  std::vector<spillway::Optimizer::Update> out;
  for (const auto& [tensor, weight, grad, named, scale, number] : updates) {
    auto step = spillway::optim::make_step(self.optimizer(), named);
    step.gradient_scale = scale;
    step.step = number;
    out.push_back({.tensor = tensor,
                   .weight = reinterpret_cast<std::byte*>(weight),    // NOLINT
                   .grad = reinterpret_cast<const std::byte*>(grad),  // NOLINT
                   .step = step});
  }
  return out;
}

template <class Byte>
std::vector<std::span<Byte>> spans_of(const std::vector<Bytes1d>& arrays) {
  std::vector<std::span<Byte>> out;
  for (const auto& array : arrays) out.emplace_back(reinterpret_cast<Byte*>(array.data()), array.size());
  return out;
}

using Values = nb::ndarray<nb::numpy, float, nb::ndim<1>, nb::c_contig>;
using Codes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>, nb::c_contig>;

/// An array of its own for Python.
template <class Array, class T>
Array given(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Array(kept->data(), {kept->size()}, owner);
}

spillway::kernels::Moment moment_of(bool second) {
  return second ? spillway::kernels::Moment::second : spillway::kernels::Moment::first;
}

nb::tuple encode(const Values& values, bool second) {
  std::vector<std::uint8_t> codes(values.size());
  std::vector<float> scales(spillway::ceil_div(values.size(), spillway::kernels::kQuantBlock));
  spillway::kernels::encode_int8(moment_of(second), values.data(), codes.data(), scales.data(), codes.size());
  return nb::make_tuple(given<Codes>(std::move(codes)), given<Values>(std::move(scales)));
}

Values decode(const Codes& codes, const Values& scales, bool second) {
  if (scales.size() != spillway::ceil_div(codes.size(), spillway::kernels::kQuantBlock)) {
    throw spillway::Error(spillway::ErrorCode::bad_input,
                          spillway::text(codes.size(), " codes with ", scales.size(), " scales; each block of ",
                                         spillway::kernels::kQuantBlock, " has one"));
  }
  std::vector<float> values(codes.size());
  spillway::kernels::decode_int8(moment_of(second), codes.data(), scales.data(), values.data(), values.size());
  return given<Values>(std::move(values));
}

}  // namespace

void bind_optimizer(nb::module_& module) {
  using spillway::Optimizer;
  nb::class_<Optimizer>(module, "Optimizer", "The state of tensors that stay where they are.")
      .def(nb::new_(&make), "tensors"_a, "optimizer"_a, "format"_a, "seed"_a, "threads"_a, "storage"_a, "staging"_a,
           "overwrite"_a,
           "`tensors`: (name, elements, bf16 or fp32) each; `storage`: (directory or device, whether it is a device) "
           "each, none: states in DRAM.")
      .def(
          "step",
          [](Optimizer& self, const std::vector<PyUpdate>& updates) {
            const nb::gil_scoped_release release;
            self.step(updates_of(self, updates));
          },
          "updates"_a,
          "(tensor, address of weight, of gradient, hyperparameters by name, gradient scale, step) each, by rising "
          "tensor.")
      .def(
          "set_master",
          [](Optimizer& self, std::size_t tensor, std::uintptr_t weight) {
            const nb::gil_scoped_release release;
            self.set_master(tensor, reinterpret_cast<const std::byte*>(weight));  // NOLINT
          },
          "tensor"_a, "weight"_a, "The masters become the weights' values.")
      .def(
          "arrays",
          [](const Optimizer& self, std::size_t tensor) {
            std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>> out;
            for (const auto& array : self.arrays(tensor)) out.emplace_back(array.name, array.entries, array.item);
            return out;
          },
          "tensor"_a, "(name, entries, bytes of an entry) of each array of the tensor's state.")
      .def(
          "fetch",
          [](Optimizer& self, std::size_t tensor, const std::vector<Bytes1d>& arrays) {
            const auto spans = spans_of<std::byte>(arrays);
            const nb::gil_scoped_release release;
            self.fetch(tensor, spans);
          },
          "tensor"_a, "arrays"_a, "Fills one array of bytes for each of arrays().")
      .def(
          "store",
          [](Optimizer& self, std::size_t tensor, const std::vector<Bytes1d>& arrays) {
            const auto spans = spans_of<const std::byte>(arrays);
            const nb::gil_scoped_release release;
            self.store(tensor, spans);
          },
          "tensor"_a, "arrays"_a)
      .def_prop_ro("state_bytes", &Optimizer::state_bytes)
      .def_prop_ro("notices", &Optimizer::notices);
  module.def("encode_moment", &encode, "values"_a, "second"_a,
             "fp32 values of a first or second moment as 8-bit codes and scales, rounded to nearest.");
  module.def("decode_moment", &decode, "codes"_a, "scales"_a, "second"_a, "The reverse of encode_moment.");
}
