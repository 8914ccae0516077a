// What subspaces spare of a model: its matrices' gradients, and the products that make them.
#pragma once

#include "spillway/plan/description.h"

namespace spillway::plan {

/// Of all matrices that learn in subspaces; without any, nothing.
struct SubspaceShare {
  std::uint64_t matrices = 0, elements = 0;
  Bytes gradients = 0, gradients_in_full = 0;  ///< of these matrices, a step
};
[[nodiscard]] SubspaceShare subspace_share(const Description& description, const state::Layout& layout);

/// The same model, with every matrix learning in full that learns in a subspace.
[[nodiscard]] Description in_full(Description description);

/// Learning from an element of a gradient, for each value in a row of a projector, beside the update of an element: on
/// one thread 0.2 to 0.9 ns were measured (docs/decisions/0004-subspaces.md) beside 1 ns.
inline constexpr double kFitWork = 0.6;

/// What learning a chunk's projectors beside passes takes of an average step, in elements of an update: nothing where
/// they are learned again only when they miss too much.
[[nodiscard]] std::uint64_t fit_elements(const SubspaceChecks& checks, const state::Chunk& chunk) noexcept;

/// How much longer backward takes with the products that learning on a schedule needs: the gradient of a first
/// micro-batch, formed whole.
[[nodiscard]] double products_with_fits(const Description& description, const state::Layout& layout);

/// How much longer backward takes with the products of whole gradients: with each matrix a product to compute again,
/// one for the input's gradient, and where it learns one for its own.
[[nodiscard]] double products_in_full(const state::Layout& layout);

}  // namespace spillway::plan
