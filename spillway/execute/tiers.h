// Chunks where they live: on the paths, resident buffers in the arena, and one chunk at a time in between.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "spillway/execute/executor.h"
#include "spillway/plan/planner.h"
#include "spillway/state/layout.h"
#include "spillway/storage/path.h"

namespace spillway::execute {

/// Reads and writes whole chunks between steps. Not for use while an instance runs.
class Tiers {
 public:
  /// `store` may be null when everything is resident.
  Tiers(const plan::Plan& plan, const state::Layout& layout, const state::UpdateRule& rule, std::byte* arena,
        Store* store);

  /// Copies a chunk's weight and state out of or into its tiers; a null pointer leaves that group alone, and so does a
  /// chunk that has none. Pointers are
  /// aligned to 4096 and hold chunk.elements elements.
  void load(std::size_t chunk, std::byte* weight, std::byte* state);
  void store(std::size_t chunk, const std::byte* weight, const std::byte* state);

  /// Where the chunk's field group lies in the arena; null: on the paths.
  [[nodiscard]] std::byte* resident_weight(std::size_t chunk) const;
  [[nodiscard]] std::byte* resident_state(std::size_t chunk) const;

  /// Whether a weight was stored since the last time this was asked.
  [[nodiscard]] bool take_stored() noexcept { return std::exchange(stored_, false); }

 private:
  const plan::Plan& plan_;
  const state::Layout& layout_;
  const state::UpdateRule rule_;
  std::byte* const arena_;
  Store* const store_;
  bool stored_ = false;
};

}  // namespace spillway::execute
