// The update of a matrix that is trained in a subspace (docs/decisions/0004-subspaces.md): a function of the chunk's
// groups and the step alone, so that it can be done again from them, wherever they lay.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "spillway/kernels/project.h"
#include "spillway/kernels/update.h"
#include "spillway/optim/lsp.h"
#include "spillway/sink/gradient_sink.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"
#include "spillway/subspace/projector.h"

namespace spillway::subspace {

/// Projectors of its shape and kind, all of them 0.
[[nodiscard]] Projectors shape_of(const optim::Reduced& subspace);
/// Values and places, from and to optim::projector_fields().
void get_pair(const optim::Reduced& subspace, const std::byte* projectors, Projectors& pair);
void put_pair(const optim::Reduced& subspace, const Projectors& pair, std::byte* projectors);
/// What the optimizer does inside: elements of an update of the matrix are around rank / sqrt(rows * columns) times
/// those of S, so the learning rate is multiplied by the reverse (subspace/matrix.h); published projectors take it as
/// it is. Decay is the matrix's own. Steps are counted from where the moments began, as `record` says.
[[nodiscard]] kernels::UpdateStep step_inside(const kernels::UpdateStep& step, const optim::Reduced& subspace,
                                              const optim::RefitRecord& record);
/// Whether S was made with the gradient's pair, which is the first, and not with that of the state, as the records say.
[[nodiscard]] bool made_with(const optim::RefitRecord& before, const optim::RefitRecord& after) noexcept;
/// What an update leaves of the matrix before the change is added: 1, or less where it decays.
[[nodiscard]] float kept_by(const kernels::UpdateStep& step, bool decays) noexcept;
/// P and Q as they lie in `projectors` (optim::projector_fields()), and a delta [rank, rank].
[[nodiscard]] kernels::Expansion expansion_of(const optim::Reduced& subspace, const std::byte* projectors,
                                              const float* delta, const kernels::UpdateStep& step) noexcept;
/// Carries the values [rank, rank] of a moment from the pair `before` to the pair `after`, which lie so, too.
/// Allocates.
void carry_over(const optim::Reduced& subspace, const std::byte* before, const std::byte* after, std::size_t moment,
                std::span<float> values);

/// In two parts: S, and then the matrix.
class SubspaceUpdate : public sink::HostUpdate {
 public:
  /// Allocates for the largest subspace of the layout. References must outlive it.
  SubspaceUpdate(const state::Layout& layout, const state::UpdateRule& rule);

  /// The first projectors, which S was made with, become those of the state. A change that others add has them, too.
  void prepare(const state::Chunk& chunk, const state::GroupPointers& groups) override;
  /// The optimizer on a tile of S: moments, and the change of a weight that was 0.
  [[nodiscard]] static std::size_t first_tiles(const state::Chunk& chunk) noexcept;
  void run_first(const state::Chunk& chunk, const state::GroupPointers& groups, const kernels::UpdateStep& step,
                 std::size_t tile);
  /// That change onto a tile of the matrix, after all of S.
  [[nodiscard]] static std::size_t tiles(const state::Chunk& chunk) noexcept;
  void run(const state::Chunk& chunk, const state::GroupPointers& groups, const kernels::UpdateStep& step,
           std::size_t tile);
  [[nodiscard]] std::size_t parts() const noexcept override { return 2; }
  [[nodiscard]] std::size_t tiles(const state::Chunk& chunk, std::size_t part) const noexcept override {
    return part == 0 ? first_tiles(chunk) : tiles(chunk);
  }
  void run(const state::Chunk& chunk, const state::GroupPointers& groups, const kernels::UpdateStep& step,
           std::size_t part, std::size_t tile) override {
    part == 0 ? run_first(chunk, groups, step, tile) : run(chunk, groups, step, tile);
  }
  /// The gradient's projectors become those of the state, for the next S. Where they are others than those of this
  /// one, the moments are carried over, or begun anew with their own count of steps, as the record says. Allocates when
  /// they are carried.
  void finish(const state::Chunk& chunk, const state::GroupPointers& groups) override;

 private:
  /// The change of S that a matrix is moved by, fp32: in the groups' place for it, or here.
  [[nodiscard]] float* change_of(const state::Chunk& chunk, const state::GroupPointers& groups) noexcept;
  void round_change(const state::Chunk& chunk, const state::GroupPointers& groups, std::uint64_t first,
                    std::uint64_t n) noexcept;
  void begin(const state::Chunk& chunk, const state::GroupPointers& groups);
  void carry(const state::Chunk& chunk, const state::GroupPointers& groups);

  const state::Layout& layout_;
  const state::UpdateRule rule_;
  std::vector<float> delta_;  ///< [rank, rank]
};

}  // namespace spillway::subspace
