// Learned sparse projectors (arXiv 2406.10181): the auxiliary fields of a matrix that trains in a subspace. What they
// are used for is in the room `subspace`.
#pragma once

#include <array>
#include <cstdint>

#include "spillway/base/bytes.h"
#include "spillway/kernels/project.h"
#include "spillway/optim/reduction.h"

namespace spillway::optim {

/// What is known of the projectors of a subspace beside their values; plain data, part of what is saved.
struct RefitRecord {
  double refits = 0;               ///< times that they were refitted; 0: never, their values are 0
  double captured = 0, whole = 0;  ///< subspace::Bias, of the steps since
  double samples = 0;              ///< the same
  double begun = 0;                ///< updates of the run after which the moments were begun anew; 0: with the run
  std::array<double, 3> spare = {};
  friend bool operator==(const RefitRecord&, const RefitRecord&) = default;
};
static_assert(sizeof(RefitRecord) == 64);

/// The projectors of a subspace as they lie in a state group and behind S in a gradient, in bytes from their start: the
/// record, then the values of P and of Q as kernels::Projector reads them.
struct ProjectorFields {
  std::uint64_t p_values = 0, q_values = 0;
  Bytes p = 0, q = 0, bytes = 0;  ///< `bytes` of all; 0 where there is no subspace
};

[[nodiscard]] constexpr ProjectorFields projector_fields(const Reduced& it) noexcept {
  if (!it.any()) return {};
  const auto values = [&](std::uint64_t rows) { return it.nonzeros * (rows + kernels::kProjectorPad); };
  ProjectorFields out{.p_values = values(it.rows), .q_values = values(it.columns), .p = sizeof(RefitRecord)};
  out.q = out.p + out.p_values * sizeof(float);
  out.bytes = out.q + out.q_values * sizeof(float);
  return out;
}

}  // namespace spillway::optim
