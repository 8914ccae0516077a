// A placement says where the objects of a step live: weights, states and gradients of chunks, and boundary activations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/plan/description.h"
#include "spillway/plan/kinds.h"
#include "spillway/plan/residence.h"
#include "spillway/state/layout.h"

namespace spillway::plan {

using Index = std::uint32_t;
inline constexpr Index kNone = ~Index{0};

/// Neighbours.
struct Range {
  Index first = 0, count = 0;

  [[nodiscard]] Index end() const noexcept { return first + count; }
};

/// When an update runs.
enum class When : std::uint8_t {
  decided,  ///< after its step is decided
  early,    ///< as soon as the gradient is complete, beside the old version (where can_be_early())
};

/// Homes of a chunk's objects; an object that does not exist counts as resident. Weight and state have their master
/// there. If the weight lives on a device, so does the state, in a world of one process the gradient, and that is their
/// only place.
struct ChunkPlacement {
  Residence weight = {}, state = {};
  Residence gradient = {};               ///< from backward to the update; one tier for those that a pass makes
  TierKind updated_on = TierKind::host;  ///< or device; what does not live there comes for it and goes back
  When when = When::decided;

  bool operator==(const ChunkPlacement&) const = default;
  /// `gradient_too`: the pass that makes the gradient leaves it there; of several processes a scatter leaves it on the
  /// host.
  void live_on_device(bool gradient_too = true) noexcept;

  [[nodiscard]] bool device_resident() const noexcept { return weight.on_device(); }
  [[nodiscard]] bool updated_there() const noexcept { return traits(updated_on).on_device; }
  /// A device updates it, and its master is on the host.
  [[nodiscard]] bool device_updated() const noexcept { return updated_there() && !device_resident(); }
  /// The host updates it, and its copy on the device takes the change in the reduced shape in place of the weight. A
  /// copy of the remainder is there, too, so that both stay equal to the master.
  [[nodiscard]] bool takes_change() const noexcept {
    return weight.has_device_copy() && state.has_device_copy() && weight.on_host() && state.on_host() &&
           !updated_there();
  }
  [[nodiscard]] bool gradient_there() const noexcept { return gradient.on_device(); }
  /// Its gradient comes to the device for the update, from the host.
  [[nodiscard]] bool gradient_comes() const noexcept { return updated_there() && !gradient_there(); }
  /// The node that what is in host memory lies on, one for weight and state; the first where nothing is.
  [[nodiscard]] std::uint16_t node() const noexcept { return weight.node != 0 ? weight.node : state.node; }
  /// The unit of its update lane: the node of its state, or the first when that passes through staging.
  [[nodiscard]] std::uint16_t update_unit() const noexcept { return updated_there() ? std::uint16_t{0} : state.node; }
};

/// Fate of the activations that autograd saves of the layers of a plan.
struct SavedPlacement {
  std::vector<Saved> blocks = {};  ///< by block; empty: every layer recomputes
  Bytes spilled = 0;               ///< of each layer that spills
  TierId home = {};                ///< where they lie meanwhile: the paths, or a tier of host memory

  [[nodiscard]] Saved of(Index block) const { return blocks.empty() ? Saved::recompute : blocks[block]; }
};

/// Home of every object. Weights and gradients of a layer lie together: their tiers are equal for all its chunks that
/// have them, but for the node.
struct Placement {
  Placement() = default;
  /// All of it on paths.
  explicit Placement(const state::Layout& layout);

  std::vector<ChunkPlacement> chunks;  ///< as Layout's
  /// Boundary activation i, the input of layer i, between forward and backward: where it waits on the host's side, and
  /// whether a copy stays on the device instead.
  std::vector<Residence> boundaries;
  Residence features = {};  ///< of images, the same
  bool device = false;      ///< passes compute on a device with memory of its own

  bool operator==(const Placement&) const = default;
  [[nodiscard]] const ChunkPlacement& operator[](std::size_t chunk) const { return chunks[chunk]; }
  /// ChunkPlacement::node() by chunk. Setting it moves what is in host memory.
  [[nodiscard]] std::vector<std::uint16_t> nodes() const;
  void set_nodes(const std::vector<std::uint16_t>& nodes);
};

/// Lets each process keep in memory its own weights alone: of blocks that live on a device, and with `on_host` of the
/// others, too. Of a block that is frozen in part each one keeps all, on its device, too: what is frozen nobody sends,
/// and passes read all of it in place.
void keep_own_weights(const Description& description, const state::Layout& layout, Placement& placement, bool on_host);

/// The first `chunks` of a block as its passes take them: of a layer all at once, of a table one by one.
[[nodiscard]] std::vector<Range> pass_ranges(const state::Block& block, std::size_t chunks);

/// Objects that the weights of a block are moved and placed by: of a layer all of them together, but for pieces that
/// are apart, of a table each slice.
[[nodiscard]] std::vector<Range> weight_objects(const state::Layout& layout, const state::Block& block);

/// Weights that one pass over a layer or a head reads: the chunks of a layer, or one slice of a head, in the order of
/// blocks.
[[nodiscard]] std::vector<Range> weights_of_passes(const Description& description, const state::Layout& layout);

/// The objects of those.
[[nodiscard]] std::vector<Range> objects_of_passes(const Description& description, const state::Layout& layout);

/// Why a device has no update for the optimizer of a run; empty: it has, of every weight type and state format.
[[nodiscard]] std::string no_device_update(const state::UpdateRule& rule);

/// True when a device may update the chunk: in a layer or a head of its own of which something is trainable, and
/// nothing in a subspace whose weights are not bf16. (A table that tokens look up is the host's.)
[[nodiscard]] bool can_be_on_device(const Description& description, const state::Layout& layout, Index chunk);

/// True when a copy of the chunk on a device may take its change: a reduced matrix of bf16 in a run of one process.
[[nodiscard]] bool can_take_change(const Description& description, const state::Layout& layout, Index chunk);

/// True when the gradient of this chunk is stored as a dense field: everything that is trainable but an embedding that
/// is not also the head. (That one's gradient is a few rows; they wait in memory and are put in place during the
/// update.)
[[nodiscard]] bool has_dense_grad(const Description& description, const state::Layout& layout, Index chunk);

/// True when the chunk may be updated before its step is decided: weight and state stay in DRAM. What lies on a path is
/// updated where it passes through memory, and its writes belong after the commit; an embedding's gradient is complete
/// with the last pass only; a change on its way to a device could not be taken back.
[[nodiscard]] bool can_be_early(const state::Layout& layout, const Placement& placement, Index chunk);

/// The lowest layer that has a backward pass, counted over the layer blocks: the first in which something is trainable;
/// all have one when an embedding is trainable, and their number is returned when none has.
[[nodiscard]] Index first_backward(const state::Layout& layout);

/// True if features of images wait from the first layer's forward pass for its backward pass.
[[nodiscard]] bool has_features(const Description& description, const state::Layout& layout);

}  // namespace spillway::plan
