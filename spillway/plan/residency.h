// Which bytes stay in DRAM, and what that means for a chunk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spillway/plan/description.h"
#include "spillway/state/layout.h"

namespace spillway::plan {

using Index = std::uint32_t;
inline constexpr Index kNone = ~Index{0};

/// Neighbours.
struct Range {
  Index first = 0, count = 0;

  [[nodiscard]] Index end() const noexcept { return first + count; }
};

/// What stays in the memory of a device beside what comes and goes. The weights there are copies: the master is the
/// host's, and each step brings the new one. But for chunks that live there: these have no other place, and are updated
/// there. And those that pass are updated there, too: their weight and state come for the update and go back after it.
struct DeviceResidency {
  std::vector<bool> weight;        ///< by chunk; equal for all chunks of a layer
  std::vector<bool> activation;    ///< by boundary, from forward to backward
  std::vector<bool> state = {};    ///< by chunk: lives there, with weight, state and gradient; empty: none does
  std::vector<bool> passing = {};  ///< by chunk that learns: passes; empty: none does
  std::vector<bool> grad = {};     ///< by chunk that passes, equal for all of a layer: its gradient stays until then

  [[nodiscard]] bool lives(Index chunk) const { return !state.empty() && state[chunk]; }
  [[nodiscard]] bool passes(Index chunk) const { return !passing.empty() && passing[chunk]; }
  /// Until the update.
  [[nodiscard]] bool keeps_gradient(Index chunk) const { return lives(chunk) || (!grad.empty() && grad[chunk]); }
};

/// Which bytes stay in DRAM. Layers by block, tables by slice (chunk), states by chunk, activations by boundary.
struct Residency {
  std::vector<bool> weight;      ///< by chunk; equal for all chunks of a layer
  std::vector<bool> state;       ///< by chunk
  std::vector<bool> grad;        ///< by chunk; equal for all chunks of a layer
  std::vector<bool> activation;  ///< by boundary: input of layer block i
  std::vector<bool> undo = {};   ///< by chunk: its old version, for an early update (can_be_early()); empty: of none
  std::vector<std::uint16_t> node = {};  ///< by chunk: index into Budget::nodes of what stays in DRAM; empty: the first
  std::optional<DeviceResidency> device = {};  ///< none: visits compute in host memory

  /// Its weight, state and gradient are in the memory of a device, and the flags above are set.
  [[nodiscard]] bool on_device(Index chunk) const { return device && device->lives(chunk); }
  /// Its master and state are on the host, and a device updates it.
  [[nodiscard]] bool passes(Index chunk) const { return device && device->passes(chunk); }
  [[nodiscard]] bool updated_there(Index chunk) const { return on_device(chunk) || passes(chunk); }
  /// Its gradient stays there until the update.
  [[nodiscard]] bool gradient_there(Index chunk) const { return device && device->keeps_gradient(chunk); }
};

/// Why a device does not update such chunks; empty: it does.
[[nodiscard]] std::string no_device_update(const state::UpdateRule& rule);

/// True when the chunk may live on a device, or pass: in a layer or a head of its own of which something learns, and
/// nothing in fp32 beside a narrower type. (A table that tokens look up is the host's.)
[[nodiscard]] bool can_be_on_device(const Description& description, const state::Layout& layout, Index chunk);

/// True when the gradient of this chunk is stored as a dense field: everything that learns but an embedding that is not
/// also the head. (That one's gradient is a few rows; they wait in memory and are put in place during the update.)
[[nodiscard]] bool has_dense_grad(const Description& description, const state::Layout& layout, Index chunk);

/// True when the chunk may be updated before its step is decided: weight and state stay in DRAM. What lies on a path is
/// updated where it passes through memory, and its writes belong after the commit; an embedding's gradient is complete
/// with the last visit only.
[[nodiscard]] bool can_be_early(const state::Layout& layout, const Residency& residency, Index chunk);

/// The lowest layer that has a backward visit, counted over the layer blocks: the first in which something learns; all
/// have one when an embedding learns, and their number is returned when none has.
[[nodiscard]] Index first_backward(const state::Layout& layout);

/// The unit of the chunk's update lane: the node of its state, or the first node when that passes through staging.
[[nodiscard]] std::uint16_t update_unit(const Residency& residency, Index chunk);

}  // namespace spillway::plan
