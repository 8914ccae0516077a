// Chunks where they live: on the paths, resident buffers in the arena or on a device, and one chunk at a time in
// between.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "spillway/execute/arenas.h"
#include "spillway/execute/executor.h"
#include "spillway/plan/planner.h"
#include "spillway/state/layout.h"
#include "spillway/storage/path.h"

namespace spillway::execute {

/// Reads and writes whole chunks between steps. Not for use while an instance runs.
class Tiers {
 public:
  /// `store` may be null when everything is resident, `device` when no chunk lives on one.
  Tiers(const plan::Plan& plan, const state::Layout& layout, const state::UpdateRule& rule, Arenas arenas, Store* store,
        device::Device* device = nullptr);

  /// Copies a chunk's weight and state out of or into its tiers; a null pointer leaves that group alone, and so does a
  /// chunk that has none. Pointers are
  /// aligned to 4096 and hold chunk.elements elements.
  void load(std::size_t chunk, std::byte* weight, std::byte* state);
  void store(std::size_t chunk, const std::byte* weight, const std::byte* state);

  /// Neither of these has its bytes: they are in a device's memory.
  [[nodiscard]] bool on_device(std::size_t chunk) const { return plan_.placement[chunk].device_resident(); }
  /// Place of the chunk's field group in the arena; null: on the paths, or on a device.
  [[nodiscard]] std::byte* resident_weight(std::size_t chunk) const;
  [[nodiscard]] std::byte* resident_state(std::size_t chunk) const;

  /// True if a weight was stored since the last call.
  [[nodiscard]] bool take_stored() noexcept { return std::exchange(stored_, false); }

 private:
  /// Places of the groups of a chunk that lives on a device.
  struct There {
    std::byte* weight = nullptr;
    std::byte* state = nullptr;
  };
  [[nodiscard]] There locate_on_device(std::size_t chunk) const;
  void copy(device::Direction direction, std::byte* to, const std::byte* from, Bytes bytes);

  const plan::Plan& plan_;
  const state::Layout& layout_;
  const state::UpdateRule rule_;
  const Arenas arenas_;
  Store* const store_;
  device::Device* const device_;
  device::Stream stream_ = 0;  ///< of copies between steps
  device::Event copied_ = 0;
  bool stored_ = false;
};

}  // namespace spillway::execute
