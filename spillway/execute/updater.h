// The update of one chunk: AdamW over its tensors, wherever the schedule put their fields.
#pragma once

#include "spillway/execute/executor.h"
#include "spillway/execute/rows.h"
#include "spillway/kernels/adamw.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

class Updater : public UpdateWork {
 public:
  /// Elements of a tile; a tile is what one thread does at a time.
  static constexpr std::uint64_t kTile = 64 * 1024;

  /// `rows` may be null (no embedding). All references must outlive it.
  Updater(const plan::Schedule& schedule, const state::Layout& layout, state::ComputeType type, std::byte* arena,
          const EmbeddingRows* rows);

  /// What the pending updates apply; set while no update runs. Tensors that do not decay ignore `weight_decay`.
  void set(const kernels::AdamWStep& step) noexcept { step_ = step; }

  [[nodiscard]] std::size_t tiles(plan::Index chunk) const override;
  void prepare(plan::Index chunk) override;
  void run(plan::Index chunk, std::size_t tile) override;

 private:
  struct Fields {
    std::byte* weight;
    std::byte* state;
    std::byte* grad;
  };
  [[nodiscard]] Fields fields(plan::Index chunk) const;
  [[nodiscard]] std::byte* at(plan::Index buffer) const;
  void apply(const Fields& fields, std::uint64_t chunk_elements, std::uint64_t first, std::uint64_t count,
             const kernels::AdamWStep& step) const;

  const plan::Schedule& schedule_;
  const state::Layout& layout_;
  const state::ComputeType type_;
  std::byte* const arena_;
  const EmbeddingRows* const rows_;
  kernels::AdamWStep step_;
};

}  // namespace spillway::execute
