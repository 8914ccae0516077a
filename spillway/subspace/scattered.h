// Products with scattered projectors, of which each row has its values at places of its own (projector.h): what
// learning them takes besides the kernels of a step.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "spillway/subspace/projector.h"

namespace spillway::subspace {

/// Values [rows][nonzeros], and then their columns as numbers: what Python saves.
[[nodiscard]] std::vector<float> pack(const Projector& scattered);
/// The reverse. Throws Error(bad_input) for another size, and for places outside the columns; nothing has changed then.
void unpack(std::span<const float> packed, Projector& scattered);
/// Throws Error(bad_input) for places outside the columns.
void check_places(const Projector& scattered);

/// Rᵀ X, [columns][width]: X is [rows][width].
[[nodiscard]] std::vector<float> reduce(const Projector& r, std::span<const float> x, std::size_t width);
/// R X, [rows][width]: X is [columns][width].
[[nodiscard]] std::vector<float> expand(const Projector& r, std::span<const float> x, std::size_t width);
/// Xᵀ, [columns][rows].
[[nodiscard]] std::vector<float> turn(std::span<const float> x, std::size_t rows, std::size_t columns);

}  // namespace spillway::subspace
