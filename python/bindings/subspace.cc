// spillway::subspace::Matrix for Python: converts, releases the GIL. No logic.
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <tuple>

#include "module.h"
#include "spillway/base/error.h"
#include "spillway/device/work.h"
#include "spillway/optim/step.h"
#include "spillway/sink/arithmetic.h"
#include "spillway/state/rule.h"
#include "spillway/subspace/matrix.h"
#include "spillway/subspace/published.h"
#include "spillway/subspace/scattered.h"
#include "spillway/subspace/subspaces.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using spillway::subspace::Matrix, spillway::subspace::PublishedMatrix;
using Values = nb::ndarray<nb::numpy, float, nb::ndim<1>, nb::c_contig>;
using Given = nb::ndarray<const float, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
using Tokens = nb::ndarray<nb::ndim<2>, nb::device::cpu, nb::c_contig>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
using Release = nb::call_guard<nb::gil_scoped_release>;

const spillway::subspace::Projector& side_of(const Matrix& matrix, unsigned side) {
  return side == 0 ? matrix.projectors().p : matrix.projectors().q;
}

const spillway::subspace::Projector& side_of(const PublishedMatrix& matrix, unsigned side) {
  return side == 0 ? matrix.pair().p : matrix.pair().q;
}

std::byte* bytes(const Tokens& tokens) {
  return static_cast<std::byte*>(tokens.data());
}

/// A copy for Python.
Values copied(const std::vector<float>& values) {
  auto* kept = new std::vector<float>(values);
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return Values(kept->data(), {kept->size()}, owner);
}

void fill(std::vector<float>& to, const Given& from, const char* name) {
  if (from.size() != to.size()) {
    throw spillway::Error(spillway::ErrorCode::bad_input,
                          spillway::text(name, " has ", from.size(), " values, and this subspace ", to.size(),
                                         ": another weight's, or another lsp_rank or lsp_nonzeros"));
  }
  std::copy_n(from.data(), from.size(), to.begin());
}

template <class Any>
void compress(const Any& matrix, unsigned side, std::uintptr_t in, std::size_t stride, std::size_t tokens,
              const std::string& type, std::uintptr_t out) {
  const auto view = side_of(matrix, side).view();
  std::vector<float> work(spillway::kernels::compress_work(view));
  const auto as = [&]<class T>(T) {
    spillway::kernels::compress(view, reinterpret_cast<const T*>(in), stride, tokens,  // NOLINT
                                reinterpret_cast<T*>(out), tokens, work.data());       // NOLINT
  };
  traits(spillway::state::parse_compute_type(type)).rounds ? as(std::uint16_t{}) : as(float{});
}

using Rates = std::tuple<spillway::optim::NamedValues, float, std::int64_t>;

std::size_t elements(const Matrix& matrix) {
  return matrix.projectors().p.rows() * matrix.projectors().q.rows();
}

std::size_t elements(const PublishedMatrix& matrix) {
  return matrix.pair().p.rows() * matrix.pair().q.rows();
}

template <class Any>
void step(Any& matrix, std::uintptr_t weight, std::uintptr_t remainder, const std::string& type, const Given& s,
          const std::string& optimizer, const Rates& rates) {
  const auto& [named, scale, number] = rates;
  const auto& rule = spillway::optim::parse(optimizer);
  auto applied = spillway::optim::make_step(rule, named);
  applied.gradient_scale = scale;
  applied.step = number;
  const auto form = spillway::state::form_of({.type = spillway::state::parse_compute_type(type)});
  matrix.step(form.weights, {s.data(), s.size()}, spillway::optim::kernel_step(rule, applied),
              {.weight = reinterpret_cast<std::byte*>(weight),        // NOLINT
               .remainder = reinterpret_cast<std::byte*>(remainder),  // NOLINT
               .n = elements(matrix)});
}

/// What spillway::Engine does of subspaces for passes, alone: for an engine of Python's own.
struct Projections {
  explicit Projections(const spillway::plan::Description& of)
      : description(of), layout(description.layout()), subspaces(description, layout) {}
  const spillway::plan::Description description;
  const spillway::state::Layout layout;
  spillway::subspace::Subspaces subspaces;
};

void bind_matrix(nb::module_& module) {
  nb::class_<Matrix>(module, "SubspaceMatrix", "A weight [rows, columns] that trains in a subspace of its own.")
      .def(
          "__init__",
          [](Matrix* self, std::size_t rows, std::size_t columns, std::size_t rank, std::size_t nonzeros) {
            new (self) Matrix({.rows = rows, .columns = columns, .rank = rank, .nonzeros = nonzeros});
          },
          "rows"_a, "columns"_a, "rank"_a, "nonzeros"_a, "`rank` 0: half of the smaller side.")
      .def_prop_ro("rank", &Matrix::rank)
      .def_prop_ro("fits", &Matrix::refits, "Times that projectors were refitted.")
      .def(
          "refit",
          [](Matrix& self, const Given& gradient, bool anew) {
            const nb::gil_scoped_release release;
            self.refit({gradient.data(), gradient.size()}, anew);
          },
          "gradient"_a, "anew"_a,
          "Refits projectors from a gradient, flat: the first for the next S, later ones for the steps after the next, "
          "which carries the moments over, or begins them anew.")
      .def_prop_ro("refitted", &Matrix::refitted, "Whether a later pair waits for its step.")
      .def_prop_rw(
          "begun", &Matrix::begun, [](Matrix& self, std::int64_t steps) { self.set_begun(steps); },
          "Steps before the moments began.")
      .def("compress", &compress<Matrix>, Release(), "side"_a, "source"_a, "stride"_a, "tokens"_a, "dtype"_a, "out"_a,
           "Tokens at an address, times P (side 0) or Q (1): [rank, tokens] at `out`.")
      .def("step", &step<Matrix>, "weight"_a, "rest"_a, "dtype"_a, "gradient"_a, "optimizer"_a, "rates"_a,
           "The optimizer on S and its delta onto the weight. `rates`: hyperparameters by name, gradient scale, "
           "step.")
      .def(
          "values", [](const Matrix& self, unsigned side) { return copied(side_of(self, side).values()); }, "side"_a)
      .def(
          "moment", [](Matrix& self, std::size_t which) { return copied(self.moment(which)); }, "which"_a)
      .def(
          "restore",
          [](Matrix& self, const Given& p, const Given& q, std::uint64_t refits, const Given& first,
             const Given& second) {
            auto projectors = self.projectors();
            auto moments = std::pair(self.moment(0), self.moment(1));
            fill(projectors.p.values(), p, "p"), fill(projectors.q.values(), q, "q");
            fill(moments.first, first, "exp_avg"), fill(moments.second, second, "exp_avg_sq");
            self.set_projectors(std::move(projectors), refits);
            self.moment(0) = std::move(moments.first), self.moment(1) = std::move(moments.second);
          },
          "p"_a, "q"_a, "fits"_a, "exp_avg"_a, "exp_avg_sq"_a, "What values(), fits and moment() gave.")
      .def(
          "add_sample", [](Matrix& self, double s, double whole) { self.bias().add(s, whole); }, "s"_a, "whole"_a,
          "A step's |S|^2 and |G z|^2.")
      .def_prop_ro(
          "error", [](const Matrix& self) { return self.bias().error(); },
          "Running estimate of |P P' G Q Q' - G| / |G|; 0 before the first sample.")
      .def_prop_rw(
          "bias",
          [](const Matrix& self) { return std::tuple(self.bias().captured, self.bias().whole, self.bias().samples); },
          [](Matrix& self, const std::tuple<double, double, std::uint64_t>& bias) {
            self.bias() = {std::get<0>(bias), std::get<1>(bias), std::get<2>(bias)};
          },
          "What the estimate is made of.");
}

void bind_published(nb::module_& module) {
  nb::class_<PublishedMatrix>(module, "PublishedMatrix", "A weight that trains in a subspace as published.")
      .def(
          "__init__",
          [](PublishedMatrix* self, std::size_t rows, std::size_t columns, std::size_t rank, std::size_t nonzeros,
             double threshold, double penalty, std::uint64_t seed, std::uint64_t number) {
            new (self) PublishedMatrix({.shape = {.rows = rows, .columns = columns, .rank = rank, .nonzeros = nonzeros},
                                        .threshold = threshold,
                                        .seed = seed,
                                        .number = number,
                                        .descent = {.penalty = penalty}});
          },
          "rows"_a, "columns"_a, "rank"_a, "nonzeros"_a, "threshold"_a, "penalty"_a, "seed"_a, "number"_a,
          "`rank` 0: half of the smaller side.")
      .def_prop_ro("rank", &PublishedMatrix::rank)
      .def_prop_ro("fits", &PublishedMatrix::refits, "Times that projectors were learned.")
      .def(
          "refit",
          [](PublishedMatrix& self, const Given& gradient) {
            const nb::gil_scoped_release release;
            self.refit({gradient.data(), gradient.size()});
          },
          "gradient"_a, "Learns the first projectors from a gradient, flat, and later ones where too much is missed.")
      .def_prop_ro("refitted", &PublishedMatrix::refitted, "Whether a later pair waits for its step.")
      .def_prop_ro("error", &PublishedMatrix::missed, "What was missed of the gradient that was last looked at.")
      .def("compress", &compress<PublishedMatrix>, Release(), "side"_a, "source"_a, "stride"_a, "tokens"_a, "dtype"_a,
           "out"_a)
      .def("step", &step<PublishedMatrix>, "weight"_a, "rest"_a, "dtype"_a, "gradient"_a, "optimizer"_a, "rates"_a)
      .def(
          "values",
          [](const PublishedMatrix& self, unsigned side) {
            return copied(spillway::subspace::pack(side_of(self, side)));
          },
          "side"_a, "Values, and then their columns as numbers: [rows, nonzeros] each.")
      .def(
          "moment", [](PublishedMatrix& self, std::size_t which) { return copied(self.moment(which)); }, "which"_a)
      .def(
          "restore",
          [](PublishedMatrix& self, const Given& p, const Given& q, std::uint64_t refits, double missed,
             const Given& first, const Given& second) {
            auto moments = std::pair(self.moment(0), self.moment(1));
            fill(moments.first, first, "exp_avg"), fill(moments.second, second, "exp_avg_sq");
            self.restore({p.data(), p.size()}, {q.data(), q.size()}, refits, missed);
            self.moment(0) = std::move(moments.first), self.moment(1) = std::move(moments.second);
          },
          "p"_a, "q"_a, "fits"_a, "error"_a, "exp_avg"_a, "exp_avg_sq"_a,
          "What values(), fits, error and moment() gave.");
}

void bind_projections(nb::module_& module) {
  nb::class_<Projections>(module, "Projections", "Projectors of a description's matrices, as Engine has them.")
      .def(nb::init<const spillway::plan::Description&>(), "description"_a)
      .def(
          "wants_whole_gradient",
          [](const Projections& self, std::size_t tensor, std::uint64_t /*micro_batch*/) {
            return self.subspaces.refits_in_pass(tensor);
          },
          "tensor"_a, "micro_batch"_a)
      .def(
          "whole_gradient",
          [](Projections& self, std::size_t tensor, const Given& gradient) {
            const nb::gil_scoped_release release;
            self.subspaces.refit(tensor, {gradient.data(), gradient.size()}, {});
          },
          "tensor"_a, "gradient"_a)
      .def(
          "compress",
          [](Projections& self, std::size_t tensor, unsigned side, const Tokens& in, const Tokens& out) {
            const nb::gil_scoped_release release;
            spillway::device::compute(spillway::device::Compress{.type = self.description.computes(),
                                                                 .by = self.subspaces.side(tensor, side),
                                                                 .in = bytes(in),
                                                                 .in_stride = in.shape(1),
                                                                 .tokens = in.shape(0),
                                                                 .out = bytes(out),
                                                                 .out_stride = in.shape(0)},
                                      {});
          },
          "tensor"_a, "side"_a, "tokens"_a, "out"_a)
      .def(
          "signs",
          [](const Projections& self, std::size_t tensor, const Floats& out) {
            self.subspaces.signs(tensor, {out.data(), out.size()});
          },
          "tensor"_a, "out"_a)
      .def("end_step", [](Projections& self) {
        self.subspaces.end(true);
        self.subspaces.begin(0, 1);
        for (std::size_t t = 0; t < self.layout.tensors().size(); ++t) {
          if (self.layout.tensors()[t].reduced.any()) self.subspaces.open(t);
        }
      });
}

}  // namespace

void bind_reduction(nb::module_& module) {
  bind_matrix(module);
  bind_published(module);
  bind_projections(module);
  module.def(
      "subspace_rank",
      [](std::size_t rows, std::size_t columns, std::size_t rank, std::size_t nonzeros) {
        return spillway::subspace::rank_of({.rows = rows, .columns = columns, .rank = rank, .nonzeros = nonzeros});
      },
      "rows"_a, "columns"_a, "rank"_a, "nonzeros"_a, "The rank that is meant; 0: half of the smaller side.");
  module.def(
      "subspace_rotates",
      [](std::uint64_t every, std::uint64_t updates, std::uint64_t matrix) {
        return spillway::subspace::rotates(every, updates, matrix);
      },
      "every"_a, "updates"_a, "matrix"_a, "Whether this one is refitted after so many updates; `every` 0: never.");
  module.def(
      "draw_signs",
      [](std::uint64_t seed, std::uint64_t matrix, std::int64_t step, std::size_t n) {
        std::vector<float> signs(n);
        spillway::subspace::draw_signs(seed, matrix, step, signs);
        return copied(signs);
      },
      "seed"_a, "matrix"_a, "step"_a, "n"_a, "1 or -1, n times.");
}
