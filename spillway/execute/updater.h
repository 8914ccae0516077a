// The update of one chunk: the optimizer over its tensors, wherever the schedule put their fields.
#pragma once

#include <vector>

#include "spillway/execute/chunk_update.h"
#include "spillway/execute/executor.h"
#include "spillway/execute/sparse_embedding.h"
#include "spillway/execute/undo_log.h"
#include "spillway/execute/waiting_updates.h"
#include "spillway/optim/step.h"
#include "spillway/plan/schedule.h"
#include "spillway/sink/gradient_sink.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"

namespace spillway::execute {

class Updater : public UpdateWork {
 public:
  /// `rows` may be null (no embedding). All references must outlive it.
  Updater(const plan::Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule, std::byte* arena,
          const SparseEmbedding* rows, sink::GradientSink& sink);

  /// Sets the step that the pending updates apply; called while no update runs.
  void set(const optim::Step& step) {
    step_ = step;
    waiting_.add(step);
  }
  /// True if a chunk has left out an update (Schedule::update_waits).
  [[nodiscard]] bool has_waiting() const { return waiting_.any(); }
  /// Sets the step that early updates apply; called before the step's first backward pass.
  void set_early(const optim::Step& step) noexcept { early_step_ = step; }
  [[nodiscard]] const UndoLog& undo() const noexcept { return undo_; }

  [[nodiscard]] std::size_t slices(plan::Index chunk) const override { return undo_.slices(chunk); }
  void save(plan::Index chunk, std::size_t slice) override { undo_.save(chunk, slice); }
  void prepare(plan::Index chunk, bool early) override;
  [[nodiscard]] std::size_t parts(plan::Index chunk) const override { return update_of(chunk).parts(chunk); }
  [[nodiscard]] std::size_t tiles(plan::Index chunk, std::size_t part) const override {
    return update_of(chunk).tiles(chunk, part);
  }
  void run(plan::Index chunk, std::size_t part, std::size_t tile, bool early) override;
  void finish(plan::Index chunk, bool early) override;
  void expect_gradient(plan::Index chunk, bool comes) override { is_zero_[chunk] = comes ? 0 : 1; }
  bool take_updates(plan::Index chunk, bool has_gradient) override;

  [[nodiscard]] bool refits(plan::Index chunk) const override;
  [[nodiscard]] bool refit_is_due(plan::Index chunk) const override { return sink_.due(tensor(chunk)); }
  void begin_refit(plan::Index chunk) override { sink_.begin_refit(tensor(chunk)); }
  [[nodiscard]] std::size_t refit_tiles(plan::Index chunk, unsigned part) const override {
    return sink_.refit_tiles(tensor(chunk), part);
  }
  void run_refit(plan::Index /*chunk*/, unsigned part, std::size_t tile) override { sink_.refit(part, tile); }
  void end_refit(plan::Index chunk) override;

 private:
  [[nodiscard]] state::GroupPointers groups(plan::Index chunk, bool early) const;
  [[nodiscard]] std::byte* grad(plan::Index chunk, bool early) const;
  [[nodiscard]] std::byte* at(const plan::Place& place) const;
  [[nodiscard]] ChunkUpdate& update_of(plan::Index chunk) { return updates_[unit_of(chunk)]; }
  [[nodiscard]] const ChunkUpdate& update_of(plan::Index chunk) const { return updates_[unit_of(chunk)]; }
  [[nodiscard]] std::size_t unit_of(plan::Index chunk) const;
  [[nodiscard]] std::size_t tensor(plan::Index chunk) const { return layout_.spans(chunk).front().tensor; }

  const plan::Schedule& schedule_;
  const state::Layout& layout_;
  const state::UpdateRule rule_;
  std::byte* const arena_;
  const SparseEmbedding* const rows_;
  sink::GradientSink& sink_;
  const UndoLog undo_;
  WaitingUpdates waiting_;
  std::vector<ChunkUpdate> updates_;      ///< by update lane
  std::vector<std::uint8_t> is_zero_;     ///< by chunk: its gradient stays where passes compute, and is zero
  mutable std::vector<std::byte> zeros_;  ///< that gradient
  optim::Step step_, early_step_;
};

}  // namespace spillway::execute
