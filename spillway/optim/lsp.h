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
  double missed = 0;               ///< of the gradient that was last looked at, by the pair that was there (published)
  std::array<double, 2> spare = {};
  friend bool operator==(const RefitRecord&, const RefitRecord&) = default;
};
static_assert(sizeof(RefitRecord) == 64);

/// Steps of AdamW that learn a published pair (subspace/descent.h).
inline constexpr int kDescentSteps = 100;

/// True if its projectors are scattered.
[[nodiscard]] constexpr bool is_published(const Reduced& it) noexcept {
  return it.by == &lsp_published;
}

/// One projector, in bytes from the start of both.
struct ProjectorField {
  std::uint64_t values = 0;    ///< how many
  Bytes first = 0, bytes = 0;  ///< of the values, and of the places behind them

  [[nodiscard]] constexpr Bytes value_bytes() const noexcept { return values * sizeof(float); }
  /// Offset of the places; blocks have none.
  [[nodiscard]] constexpr Bytes places() const noexcept { return first + value_bytes(); }
  [[nodiscard]] constexpr Bytes place_bytes() const noexcept { return bytes - value_bytes(); }
};

/// The projectors of a subspace as they lie in a state group and behind S in a gradient: the record, then P and Q as
/// kernels::Projector reads them.
struct ProjectorFields {
  ProjectorField p, q;
  Bytes bytes = 0;  ///< of all; 0 where there is no subspace
};

[[nodiscard]] constexpr ProjectorFields projector_fields(const Reduced& it) noexcept {
  static_assert(sizeof(float) == sizeof(std::uint32_t));
  if (!it.any()) return {};
  const auto field = [&](std::uint64_t rows, Bytes first) {
    const auto values = it.nonzeros * (rows + kernels::kProjectorPad);
    return ProjectorField{values, first, values * sizeof(float) * (is_published(it) ? 2 : 1)};
  };
  ProjectorFields out{.p = field(it.rows, sizeof(RefitRecord)), .q = {}};
  out.q = field(it.columns, out.p.first + out.p.bytes);
  out.bytes = out.q.first + out.q.bytes;
  return out;
}

}  // namespace spillway::optim
