// The events of a step in the order of their positions: one per chunk, where its update belongs, and one per pass of a
// block; and how far from them transfers begin and end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "spillway/plan/schedule.h"

namespace spillway::plan::step {

class StepOrder {
 public:
  /// `device`: passes but those of the embedding compute on a device with memory of its own.
  StepOrder(const Description& description, const state::Layout& layout, const Lookahead& lookahead, bool device);

  /// Passes, as indices into passes(): by slice of the table, by layer, and by slice of the head.
  std::vector<Index> embedding, forward, head_loss;
  std::vector<Index> head_gradient;  ///< from the last slice down: what the first pass left in memory comes first
  std::vector<Index> backward;       ///< by layer; kNone: nothing below is trainable
  Index embedding_backward = kNone;

  std::vector<Index> layers;                    ///< blocks
  Index lowest = 0;                             ///< layer with a backward pass
  Index embedding_block = kNone, head = kNone;  ///< blocks; a tied head is the embedding

  [[nodiscard]] const std::vector<Pass>& passes() const noexcept { return passes_; }
  [[nodiscard]] std::uint32_t positions() const noexcept { return positions_; }
  [[nodiscard]] std::uint32_t backward_start() const noexcept { return backward_start_; }
  [[nodiscard]] std::uint32_t position(Index pass) const { return passes_[pass].position; }
  /// Position of the update of a chunk.
  [[nodiscard]] std::uint32_t update(Index chunk) const { return updates_[chunk]; }

  /// The pass that makes the gradient of a chunk that has a dense one; a slice of a tied table: the head's.
  [[nodiscard]] Index pass_of_gradient(Index chunk) const;
  /// The forward pass of a layer's chunk.
  [[nodiscard]] Index forward_of(Index chunk) const { return forward[layer_of(chunk)]; }

  [[nodiscard]] bool any_backward() const noexcept { return lowest < layers.size(); }
  /// The passes between which the gradient of hidden states lives: from the head or the last layer to whoever uses it
  /// last. kNone: there is no such gradient.
  [[nodiscard]] Index first_differentiated() const;
  [[nodiscard]] Index last_differentiated() const;

  /// Position `ahead` chunks before the update of c, not before the start of the step.
  [[nodiscard]] std::uint32_t before_update(Index c, std::uint32_t ahead) const;
  /// Position at which a host buffer of chunk c is let go: `Lookahead::write` chunks later, and in time for the next
  /// step's reads.
  [[nodiscard]] std::uint32_t after_update(Index c) const;
  /// Position from which a pass's bytes may be read: after the last update of the step.
  [[nodiscard]] std::uint32_t before_pass(Index pass, std::uint32_t ahead) const;

  /// Position from which what comes from a path for a backward pass or for a slice of a head has its window, and up to
  /// which what a forward pass sends to a path may lie where the pass has made it; or, where another pass reads it
  /// first, where that one finds it.
  [[nodiscard]] std::uint32_t before_backward(Index pass) const {
    return before_pass(pass, traits(passes_[pass].kind).of_layer ? lookahead_.backward : lookahead_.head);
  }
  [[nodiscard]] std::uint32_t after_forward(Index pass) const;
  [[nodiscard]] std::uint32_t after_read(Index pass) const;
  /// Position up to which a gradient on its way to a path lies where its pass, or a copy from a device, has left it.
  [[nodiscard]] std::uint32_t after_gradient(Index pass) const;
  /// The first states for the next step's updates come at the end of this one.
  [[nodiscard]] bool comes_ahead(Index c) const noexcept { return c < lookahead_.state_read; }
  [[nodiscard]] std::uint32_t state_before_update(Index c) const;

  // Between processes. Weights for a backward pass come while the pass before it computes, and sums lie where they are
  // for one pass at least:
  [[nodiscard]] std::uint32_t before_gather(Index pass) const { return before_pass(pass, 1); }
  [[nodiscard]] std::uint32_t after_scatter(Index pass) const {
    return std::min(position(pass) + std::max(1U, lookahead_.grad_write), positions_ - 1);
  }

  // The positions of copies to and from a device, which run Lookahead::device passes or updates before and after:
  [[nodiscard]] std::uint32_t device_before(Index pass) const;
  [[nodiscard]] std::uint32_t device_after(Index pass) const;
  [[nodiscard]] std::uint32_t device_before_update(Index c) const;
  [[nodiscard]] std::uint32_t device_after_update(Index c) const;

 private:
  void place(bool tied_head);
  Index add(PassKind kind, Index block, Index slice = 0);
  [[nodiscard]] std::size_t layer_of(Index chunk) const;
  [[nodiscard]] bool is_trainable(Index c) const { return state::is_trainable(layout_.chunks()[c].training); }

  const state::Layout& layout_;
  const Lookahead& lookahead_;
  const bool device_;
  std::vector<Pass> passes_;
  std::vector<std::uint32_t> updates_;  ///< by chunk
  std::uint32_t positions_ = 0, last_update_ = 0, backward_start_ = 0;
};

}  // namespace spillway::plan::step
