// Chunks where they live: extents on the path, resident buffers in the arena, and one chunk at a time in between.
#pragma once

#include <cstdint>
#include <span>

#include "spillway/execute/executor.h"
#include "spillway/plan/planner.h"
#include "spillway/state/layout.h"
#include "spillway/storage/path.h"

namespace spillway::execute {

/// Reserves the plan's extents on the path.
[[nodiscard]] Extents reserve_extents(const plan::Plan& plan, const plan::Description& description,
                                      const state::Layout& layout, storage::Path* path);

/// Reads and writes whole chunks between steps. Not for use while an instance runs.
class Tiers {
 public:
  Tiers(const plan::Plan& plan, const state::Layout& layout, state::ComputeType type, const Extents& extents,
        std::byte* arena, storage::Path* path);

  /// Copies a chunk's weight and state out of or into its tiers; a null pointer leaves that group alone. Pointers are
  /// aligned to 4096 and hold chunk.elements elements.
  void load(std::size_t chunk, std::byte* weight, std::byte* state);
  void store(std::size_t chunk, const std::byte* weight, const std::byte* state);

 private:
  [[nodiscard]] std::byte* resident_weight(std::size_t chunk) const;
  [[nodiscard]] std::byte* resident_state(std::size_t chunk) const;
  void move(storage::Direction direction, std::byte* memory, Bytes bytes, Bytes offset);

  const plan::Plan& plan_;
  const state::Layout& layout_;
  const state::FieldBytes bytes_;
  const Extents& extents_;
  std::byte* const arena_;
  storage::Path* const path_;
};

}  // namespace spillway::execute
