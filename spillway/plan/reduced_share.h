// Savings of reduced gradients: the gradients of a model's matrices, and the products that make them.
#pragma once

#include "spillway/plan/description.h"

namespace spillway::plan {

/// Share of all reduced matrices; nothing without any.
struct ReducedShare {
  std::uint64_t matrices = 0, elements = 0;
  Bytes gradients = 0, gradients_in_full = 0;  ///< of these matrices, a step
};
[[nodiscard]] ReducedShare reduced_share(const Description& description, const state::Layout& layout);

/// The model with every matrix trained in full that is reduced.
[[nodiscard]] Description in_full(Description description);

/// Cost of a chunk's background refit in an average step, in elements of an update. Nothing if a refit is only due when
/// too much is missed.
[[nodiscard]] std::uint64_t refit_elements(const optim::RefitRule& checks, const state::Chunk& chunk) noexcept;

/// How much longer backward takes with the products that learning on a schedule needs: the gradient of a first
/// micro-batch, formed whole.
[[nodiscard]] double products_with_refits(const Description& description, const state::Layout& layout);

/// How much longer backward takes with the products of whole gradients: with each matrix a product to compute again,
/// one for the input's gradient, and where it is trainable, one for its own.
[[nodiscard]] double products_in_full(const state::Layout& layout);

}  // namespace spillway::plan
