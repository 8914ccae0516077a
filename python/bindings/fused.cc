// RMSNorm, SwiGLU and rotary embedding for Python (device/fused.h). No logic but checks of shapes.
#include "spillway/device/fused.h"

#include <nanobind/stl/optional.h>

#include "passes.h"

using namespace nb::literals;
namespace device = spillway::device;
using spillway::kernels::Element;

namespace {

using Heads = nb::ndarray<nb::ndim<4>>;   // [sequences, heads, tokens, size], a head's elements side by side
using Angles = nb::ndarray<nb::ndim<3>>;  // [sequences or 1, tokens, size], the same

void require(bool holds, const char* words) {
  if (!holds) throw spillway::Error(spillway::ErrorCode::bad_input, words);
}

template <class Any>
Element element_of(const Any& array) {
  const auto type = array.dtype();
  const bool bf16 = type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat) && type.bits == 16;
  const bool is_float = type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float);
  require(bf16 || (is_float && (type.bits == 16 || type.bits == 32)), "layers compute in bf16, fp16 or fp32");
  return bf16 ? Element::bf16 : type.bits == 16 ? Element::fp16 : Element::fp32;
}

/// An array of as many elements of the same type as `like`.
std::byte* alike(const Engine& engine, const Anywhere& array, const Anywhere& like, const char* what) {
  require(array.dtype() == like.dtype() && array.size() == like.size(), what);
  return there(engine, array, what);
}

struct Scale {
  double epsilon = 0, offset = 0;
  bool rounds_early = false;
};

device::RmsNorm norm_of(const Engine& engine, const Anywhere& values, const Anywhere& weight, const Scale& scale) {
  const auto columns = weight.size();
  require(columns > 0 && values.size() % columns == 0, "rms_norm: rows are as long as the weight");
  require(values.dtype() == weight.dtype(), "rms_norm: values and weight have one type");
  return {element_of(values),
          there(engine, values, "values"),
          there(engine, weight, "a weight"),
          values.size() / columns,
          columns,
          static_cast<float>(scale.epsilon),
          static_cast<float>(scale.offset),
          scale.rounds_early};
}

void bind_norms(PyEngine& engine) {
  engine
      .def(
          "rms_norm",
          [](Engine& self, const Anywhere& values, const Anywhere& weight, const Anywhere& out, double epsilon,
             double offset, bool rounds_early, const std::optional<Anywhere>& addend,
             const std::optional<Anywhere>& sum) {
            const auto norm = norm_of(self, values, weight, {epsilon, offset, rounds_early});
            require(addend.has_value() == sum.has_value(), "rms_norm: an addend needs a place for the sum");
            const nb::gil_scoped_release release;
            self.compute(
                device::RmsNormForward{norm, alike(self, out, values, "rms_norm: out is as values"),
                                       addend ? alike(self, *addend, values, "rms_norm: addend is as values") : nullptr,
                                       sum ? alike(self, *sum, values, "rms_norm: sum is as values") : nullptr});
          },
          "values"_a, "weight"_a, "out"_a, "epsilon"_a, "offset"_a, "rounds_early"_a, "addend"_a.none() = nb::none(),
          "sum"_a.none() = nb::none())
      .def(
          "rms_norm_backward",
          [](Engine& self, const Anywhere& values, const Anywhere& weight, const Anywhere& gradient,
             const Anywhere& scales, const Anywhere& out, const std::optional<Anywhere>& sums,
             const std::optional<Anywhere>& to_weight, double epsilon, double offset, bool rounds_early,
             const std::optional<Anywhere>& skip_gradient) {
            const auto norm = norm_of(self, values, weight, {epsilon, offset, rounds_early});
            const auto tiles = device::norm_tiles(norm.rows);
            const nb::gil_scoped_release release;
            const auto* const from = alike(self, gradient, values, "rms_norm_backward: gradient is as values");
            auto* const scale = there<float>(self, scales, 2 * norm.rows, "scales");
            auto* const tile_sums = sums ? there<float>(self, *sums, tiles * norm.columns, "sums") : nullptr;
            self.compute(device::RmsNormScales{norm, from, scale});
            self.compute(device::RmsNormBackward{
                norm, from, scale, alike(self, out, values, "rms_norm_backward: out is as values"), tile_sums,
                skip_gradient ? alike(self, *skip_gradient, values, "rms_norm_backward: skip_gradient is as values")
                              : nullptr});
            if (!sums) return;
            require(to_weight.has_value(), "rms_norm_backward: sums are for the weight's gradient");
            self.compute(device::RmsNormWeight{norm.type, tile_sums, tiles, norm.columns,
                                               alike(self, *to_weight, weight, "rms_norm_backward: as the weight")});
          },
          "values"_a, "weight"_a, "gradient"_a, "scales"_a, "out"_a, "sums"_a.none(), "to_weight"_a.none(), "epsilon"_a,
          "offset"_a, "rounds_early"_a, "skip_gradient"_a.none() = nb::none());
}

void bind_gates(PyEngine& engine) {
  engine
      .def(
          "swiglu",
          [](Engine& self, const Anywhere& gate, const Anywhere& up, const Anywhere& out) {
            const nb::gil_scoped_release release;
            const auto* const values = there(self, gate, "a gate");
            self.compute(device::SwiGlu{element_of(gate), values, alike(self, up, gate, "swiglu: up is as gate"),
                                        alike(self, out, gate, "swiglu: out is as gate"), gate.size()});
          },
          "gate"_a, "up"_a, "out"_a)
      .def(
          "swiglu_backward",
          [](Engine& self, const Anywhere& gate, const Anywhere& up, const Anywhere& gradient, const Anywhere& to_gate,
             const Anywhere& to_up, const std::optional<Anywhere>& product) {
            const auto of = [&](const Anywhere& array) {
              return alike(self, array, gate, "swiglu_backward: all arrays are as gate");
            };
            const nb::gil_scoped_release release;
            self.compute(device::SwiGluBackward{element_of(gate), of(gate), of(up), of(gradient), of(to_gate),
                                                of(to_up), product ? of(*product) : nullptr, gate.size()});
          },
          "gate"_a, "up"_a, "gradient"_a, "to_gate"_a, "to_up"_a, "product"_a.none() = nb::none());
}

device::Rotary::Strides strides_of(const Heads& heads) {
  const auto stride = [&](std::size_t i) { return static_cast<std::uint64_t>(heads.stride(i)); };
  return {stride(0), stride(1), stride(2)};
}

void bind_rotations(PyEngine& engine) {
  engine.def(
      "rotate",
      [](Engine& self, const Heads& in, const Angles& cosines, const Angles& sines, const Heads& out, bool backward) {
        for (const auto i : {0, 1, 2, 3}) require(in.shape(i) == out.shape(i), "rotate: out is as in");
        const auto size = in.shape(3);
        const bool shared = cosines.shape(0) == 1;
        require(size % 2 == 0, "rotate: heads have an even size");
        require(
            (shared || cosines.shape(0) == in.shape(0)) && cosines.shape(1) == in.shape(2) && cosines.shape(2) == size,
            "rotate: a token of a sequence has an angle for each element of a head");
        for (const auto i : {0, 1, 2}) {
          require(sines.shape(i) == cosines.shape(i) && sines.stride(i) == cosines.stride(i),
                  "rotate: sines lie as cosines do");
        }
        require(in.stride(3) == 1 && out.stride(3) == 1 && cosines.stride(2) == 1, "rotate: elements lie side by side");
        require(in.dtype() == out.dtype() && in.dtype() == cosines.dtype() && in.dtype() == sines.dtype(),
                "rotate: all have one type");
        const nb::gil_scoped_release release;
        self.compute(device::Rotary{.type = element_of(in),
                                    .backward = backward,
                                    .in = there(self, in, "heads"),
                                    .cosines = there(self, cosines, "cosines"),
                                    .sines = there(self, sines, "sines"),
                                    .out = there(self, out, "rotated heads"),
                                    .sequences = in.shape(0),
                                    .heads = in.shape(1),
                                    .tokens = in.shape(2),
                                    .half = size / 2,
                                    .in_strides = strides_of(in),
                                    .out_strides = strides_of(out),
                                    .table_strides = {shared ? 0 : static_cast<std::uint64_t>(cosines.stride(0)), 0,
                                                      static_cast<std::uint64_t>(cosines.stride(1))}});
      },
      "heads"_a, "cosines"_a, "sines"_a, "out"_a, "backward"_a);
}

}  // namespace

void bind_fused(PyEngine& engine) {
  bind_norms(engine);
  bind_gates(engine);
  bind_rotations(engine);
}
