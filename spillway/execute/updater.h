// The update of one chunk: the optimizer over its tensors, wherever the schedule put their fields.
#pragma once

#include <algorithm>
#include <vector>

#include "spillway/execute/executor.h"
#include "spillway/execute/rows.h"
#include "spillway/execute/subspace_update.h"
#include "spillway/execute/subspaces.h"
#include "spillway/execute/undo_log.h"
#include "spillway/kernels/update.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"

namespace spillway::execute {

/// Elements of a tile; a tile is what one thread does at a time.
inline constexpr std::uint64_t kUpdateTile = 64 * 1024;
[[nodiscard]] std::size_t update_tiles(const state::Chunk& chunk) noexcept;
/// Calls apply(located, step) for what of each tensor lies in elements [begin, end) of the chunk; tensors that do not
/// decay get the step without `weight_decay`.
template <class Apply>
void update_spans(const state::Layout& layout, const state::UpdateRule& rule, std::size_t chunk,
                  const state::GroupPointers& groups, const kernels::UpdateStep& step, std::uint64_t begin,
                  std::uint64_t end, const Apply& apply) {
  auto plain = step;
  plain.weight_decay = 0;
  for (const auto& span : layout.spans(chunk)) {
    const auto first = std::max(begin, span.chunk_first);
    const auto last = std::min(end, span.chunk_first + span.elements);
    if (first >= last) continue;
    const bool decays = layout.tensors()[span.tensor].spec.decay;
    apply(state::locate(rule, layout.chunks()[chunk], span, groups, first, last - first), decays ? step : plain);
  }
}

/// Applies `step` to one tile; tensors that do not decay ignore its `weight_decay`.
void update_tile(const state::Layout& layout, const state::UpdateRule& rule, std::size_t chunk,
                 const state::GroupPointers& groups, const kernels::UpdateStep& step, std::size_t tile);

class Updater : public UpdateWork {
 public:
  /// `rows` may be null (no embedding). All references must outlive it.
  Updater(const plan::Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule, std::byte* arena,
          const EmbeddingRows* rows, Subspaces& subspaces);

  /// What the pending updates apply; set while no update runs.
  void set(const kernels::UpdateStep& step) noexcept { step_ = step; }
  /// What early updates apply; set before the step's first backward visit.
  void set_early(const kernels::UpdateStep& step) noexcept { early_step_ = step; }
  [[nodiscard]] const UndoLog& undo() const noexcept { return undo_; }

  [[nodiscard]] std::size_t slices(plan::Index chunk) const override { return undo_.slices(chunk); }
  void save(plan::Index chunk, std::size_t slice) override { undo_.save(chunk, slice); }
  void prepare(plan::Index chunk, bool early) override;
  [[nodiscard]] std::size_t first_tiles(plan::Index chunk) const override;
  void run_first(plan::Index chunk, std::size_t tile, bool early) override;
  [[nodiscard]] std::size_t tiles(plan::Index chunk) const override;
  void run(plan::Index chunk, std::size_t tile, bool early) override;
  void finish(plan::Index chunk, bool early) override;

  [[nodiscard]] bool fits(plan::Index chunk) const override;
  void begin_fit(plan::Index chunk) override { learned_.begin_fit(tensor(chunk)); }
  [[nodiscard]] std::size_t fit_tiles(plan::Index chunk, unsigned part) const override {
    return learned_.fit_tiles(tensor(chunk), part);
  }
  void run_fit(plan::Index /*chunk*/, unsigned part, std::size_t tile) override { learned_.fit(part, tile); }
  void end_fit(plan::Index chunk) override;

 private:
  [[nodiscard]] state::GroupPointers groups(plan::Index chunk, bool early) const;
  [[nodiscard]] std::byte* grad(plan::Index chunk, bool early) const;
  [[nodiscard]] std::byte* at(plan::Index buffer) const;
  [[nodiscard]] bool inside(plan::Index chunk) const { return layout_.chunks()[chunk].subspace.rank > 0; }
  [[nodiscard]] SubspaceUpdate& subspace(plan::Index chunk);
  [[nodiscard]] std::size_t tensor(plan::Index chunk) const { return layout_.spans(chunk).front().tensor; }

  const plan::Schedule& schedule_;
  const state::Layout& layout_;
  const state::UpdateRule rule_;
  std::byte* const arena_;
  const EmbeddingRows* const rows_;
  Subspaces& learned_;
  const UndoLog undo_;
  std::vector<SubspaceUpdate> subspaces_;  ///< by update lane
  kernels::UpdateStep step_, early_step_;
};

}  // namespace spillway::execute
