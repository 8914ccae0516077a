#include "spillway/optim/lsp.h"

#include <algorithm>

#include "spillway/base/error.h"

namespace spillway::optim {
namespace {

/// Refitting from an element of a gradient, for each value in a row of a projector, beside the update of an element: on
/// one thread 0.2 to 0.9 ns were measured (docs/decisions/0004-subspaces.md) beside 1 ns.
constexpr double kFitWork = 0.6;
/// A multiply and an add of a product with a scattered projector, beside the same.
constexpr double kDescentWork = 0.25;

constexpr const char* kOthers = "other matrices in subspaces, or another lsp_rank, lsp_nonzeros or lsp_projectors";

Bytes auxiliary_bytes(const Reduced& it) {
  return projector_fields(it).bytes;
}

/// Values, places, and numbers of the values by column.
Bytes device_bytes(const Reduced& it) {
  Bytes numbers = 0;
  for (const auto rows : {it.rows, it.columns}) {
    if (is_published(it)) numbers += it.rank + 1 + it.nonzeros * rows;
  }
  return it.refitted_bytes() + numbers * sizeof(std::uint32_t);
}

std::vector<AuxiliaryPart> parts(const Reduced& it) {
  const auto fields = projector_fields(it);
  std::vector<AuxiliaryPart> out{{".fit", "F64", {sizeof(RefitRecord) / sizeof(double)}, 0, sizeof(RefitRecord)}};
  const auto add = [&](const char* name, const char* values, const char* places, const ProjectorField& field) {
    const auto r = static_cast<std::int64_t>(it.nonzeros);
    const std::vector shape{r, static_cast<std::int64_t>(field.values) / r};
    out.push_back({is_published(it) ? values : name, "F32", shape, field.first, field.value_bytes()});
    if (is_published(it)) out.push_back({places, "I32", shape, field.places(), field.place_bytes()});
  };
  add(".p", ".p_values", ".p_places", fields.p);
  add(".q", ".q_values", ".q_places", fields.q);
  return out;
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

/// The values that subspace::descend() keeps, and a copy of the gradient that is looked at.
Bytes descent_work(const Reduced& it) {
  const auto sides = it.rows + it.columns;
  return (3 * it.rows * it.columns + 4 * sides * it.rank) * sizeof(float) + 2 * sides * it.nonzeros * sizeof(double);
}

/// Steps that each take the gradient through P and through Q, and [d, d] through both several times.
double descent_cost(const Reduced& it, std::uint64_t elements) {
  const auto products = 2 * elements + 6 * (it.rows + it.columns) * it.rank;
  return kDescentSteps * static_cast<double>(products * it.nonzeros) * kDescentWork;
}

}  // namespace

constinit const Reduction lsp{.name = "lsp",
                              .word = "subspace",
                              .auxiliary = "projectors",
                              .others = kOthers,
                              .record = sizeof(RefitRecord),
                              .auxiliary_bytes = auxiliary_bytes,
                              .parts = parts,
                              .device_bytes = device_bytes,
                              .refusal = refusal,
                              .refit_work = refit_work,
                              .refit_cost = refit_cost};

constinit const Reduction lsp_published{.name = "lsp",
                                        .word = "published subspace",
                                        .auxiliary = "projectors",
                                        .others = kOthers,
                                        .record = sizeof(RefitRecord),
                                        .looks = true,
                                        .auxiliary_bytes = auxiliary_bytes,
                                        .parts = parts,
                                        .device_bytes = device_bytes,
                                        .refusal = refusal,
                                        .refit_work = descent_work,
                                        .refit_cost = descent_cost};

}  // namespace spillway::optim
