#include "spillway/optim/lsp.h"

#include <algorithm>

#include "spillway/base/error.h"

namespace spillway::optim {
namespace {

/// Refitting from an element of a gradient, for each value in a row of a projector, beside the update of an element: on
/// one thread 0.2 to 0.9 ns were measured (docs/decisions/0004-subspaces.md) beside 1 ns.
constexpr double kFitWork = 0.6;

Bytes auxiliary_bytes(const Reduced& it) {
  return projector_fields(it).bytes;
}

std::vector<AuxiliaryPart> parts(const Reduced& it) {
  const auto fields = projector_fields(it);
  const auto values = [&](std::uint64_t rows) {
    return std::vector{static_cast<std::int64_t>(it.nonzeros),
                       static_cast<std::int64_t>(rows + kernels::kProjectorPad)};
  };
  return {{".fit", "F64", {sizeof(RefitRecord) / sizeof(double)}, 0, sizeof(RefitRecord)},
          {".p", "F32", values(it.rows), fields.p, fields.p_values * sizeof(float)},
          {".q", "F32", values(it.columns), fields.q, fields.q_values * sizeof(float)}};
}

std::string refusal(const Reduced& it) {
  if (it.nonzeros > 0 && it.rank > 0 && it.rank % it.nonzeros == 0 && it.rank <= std::min(it.rows, it.columns)) {
    return {};
  }
  return text("it is ", it.rows, " x ", it.columns, ", lsp_rank ", it.rank, " and lsp_nonzeros ", it.nonzeros,
              "; the rank must be a multiple of lsp_nonzeros and at most the smaller side");
}

/// What subspace::Refit keeps: the gradient times Q.
Bytes refit_work(const Reduced& it) {
  return it.rows * it.rank * sizeof(float);
}

double refit_cost(const Reduced& it, std::uint64_t elements) {
  return static_cast<double>(elements * it.nonzeros) * kFitWork;
}

}  // namespace

constinit const Reduction lsp{.name = "lsp",
                              .word = "subspace",
                              .auxiliary = "projectors",
                              .others = "other matrices in subspaces, or another lsp_rank or lsp_nonzeros",
                              .record = sizeof(RefitRecord),
                              .auxiliary_bytes = auxiliary_bytes,
                              .parts = parts,
                              .refusal = refusal,
                              .refit_work = refit_work,
                              .refit_cost = refit_cost};

}  // namespace spillway::optim
