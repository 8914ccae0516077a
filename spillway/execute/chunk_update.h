// The update of one chunk on the host, whatever its optimizer: parts, one after the other, each of tiles that threads
// share. A function of the chunk's groups and the step alone, so that it can be done again from them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "spillway/kernels/update.h"
#include "spillway/optim/step.h"
#include "spillway/sink/gradient_sink.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"

namespace spillway::execute {

/// Elements of a tile; a tile is what one thread does at a time.
inline constexpr std::uint64_t kUpdateTile = 64 * 1024;

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

/// Works on one chunk at a time. Calls do not throw.
class ChunkUpdate {
 public:
  /// Allocates what the largest update of the layout needs. The layout must outlive it.
  ChunkUpdate(const state::Layout& layout, const state::UpdateRule& rule);

  /// Once, before the parts.
  void prepare(std::size_t chunk, const state::GroupPointers& groups);
  [[nodiscard]] std::size_t parts(std::size_t chunk) const noexcept;
  [[nodiscard]] std::size_t tiles(std::size_t chunk, std::size_t part) const noexcept;
  /// `step` is the run's, of all optimizers.
  void run(std::size_t chunk, const state::GroupPointers& groups, const optim::Step& step, std::size_t part,
           std::size_t tile);
  /// Once, after them.
  void finish(std::size_t chunk, const state::GroupPointers& groups);

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };

  const state::Layout& layout_;
  const state::UpdateRule rule_;
  std::unique_ptr<sink::HostUpdate> reduced_;
  std::unique_ptr<std::byte, Free> workspace_;  ///< of matrix scope
};

/// The kernel's arguments for chunks that are updated element by element.
[[nodiscard]] kernels::UpdateStep element_step(const state::UpdateRule& rule, const optim::Step& step) noexcept;

}  // namespace spillway::execute
