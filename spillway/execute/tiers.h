// Chunks where they live: on the paths, resident buffers in the arena or on a device, and one chunk at a time in
// between.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "spillway/execute/arenas.h"
#include "spillway/execute/executor.h"
#include "spillway/execute/weight_slots.h"
#include "spillway/execute/weight_swap.h"
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
  [[nodiscard]] bool on_device(std::size_t chunk) const { return home_of(chunk).on_device(); }
  /// Place of the chunk's field group in the arena; null: on the paths, or on a device.
  [[nodiscard]] std::byte* resident_weight(std::size_t chunk) const;
  [[nodiscard]] std::byte* resident_state(std::size_t chunk) const;

  /// Two frozen chunks swap the places of their weights, copies on a device included. What comes to memory is read, and
  /// what leaves it is written to a path unless it lies there; both are served after all else. Steps go on meanwhile.
  void start_swap(WeightSwap& swap);
  /// Waits for its transfers; throws nothing.
  void wait(WeightSwap& swap);
  /// After its transfers have ended: from here on the chunks lie in each other's places. Throws the error of a
  /// transfer.
  void end_swap(WeightSwap& swap);
  [[nodiscard]] const WeightSlots& slots() const noexcept { return slots_; }

  /// True if a weight was stored since the last call.
  [[nodiscard]] bool take_stored() noexcept { return std::exchange(stored_, false); }

 private:
  /// Places of the groups of a chunk that lives on a device.
  struct There {
    std::byte* weight = nullptr;
    std::byte* state = nullptr;
  };
  [[nodiscard]] There locate_on_device(std::size_t chunk) const;
  [[nodiscard]] const plan::Residence& home_of(std::size_t chunk) const {
    return plan_.placement[slots_.slot_of(chunk)].weight;
  }
  [[nodiscard]] bool lies_on_path(std::size_t chunk) const;
  [[nodiscard]] bool is_wanted(std::size_t chunk, std::size_t slot) const;
  [[nodiscard]] std::byte* copy_on_device(std::size_t chunk) const;
  void start_transfer(WeightSwap::Side& side, storage::Direction direction);
  void copy(device::Direction direction, std::byte* to, const std::byte* from, Bytes bytes);

  const plan::Plan& plan_;
  const state::Layout& layout_;
  const state::UpdateRule rule_;
  const Arenas arenas_;
  WeightSlots slots_;
  std::vector<plan::Place> copies_;  ///< by slot: weights that stay on a device; empty without one
  Store* const store_;
  device::Device* const device_;
  device::Stream stream_ = 0;  ///< of copies between steps
  device::Event copied_ = 0;
  bool stored_ = false;
};

}  // namespace spillway::execute
