// The projectors of a run, in DRAM, for passes: what compresses a layer's gradient, refits projectors from it, and
// keeps an eye on what they miss (docs/decisions/0004-subspaces.md).
//
// The state of a chunk has the projectors that its next gradient is made with. The first pair is refitted inside its
// pass, before any of S is made. A later one is refitted beside the passes, from a copy of the gradient that the pass
// leaves, goes into that step's gradient record, and is that of the next step: the update applies S by the pair before
// and then takes over the new one. The copy here follows when the next step's pass opens; what a step has refitted
// is forgotten when the step is skipped.
//
// With several virtual ranks, which processes may share, the first pair is a later one, too: none of them can wait in
// its pass for what the first rank's gradient gives. So the first S is zero, and moments begin with the second. Every
// process has all projectors; one refits a pair and sends it to the others.
//
// A published pair (published.h) is looked at in the pass, with the gradient from which it would be learned again:
// there is no running estimate. If it misses no more than the threshold, it stays.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "spillway/device/work.h"
#include "spillway/optim/lsp.h"
#include "spillway/plan/auxiliary_memory.h"
#include "spillway/plan/description.h"
#include "spillway/state/layout.h"
#include "spillway/subspace/pair_state.h"
#include "spillway/subspace/refit.h"

namespace spillway::subspace {

class Subspaces {
 public:
  /// Projectors of every matrix that is trained in a subspace, none of them refitted. References must outlive it.
  Subspaces(const plan::Description& description, const state::Layout& layout);

  [[nodiscard]] bool any() const noexcept { return any_; }
  /// Between steps: as they lie in the state group of the tensor's chunk.
  void restore(std::size_t tensor, const std::byte* projectors);

  /// A training step begins, after so many updates; gradients come multiplied by `scale`.
  void begin(std::int64_t updates, double scale);
  /// Its backward pass begins: what the step before has refitted is there.
  void open(std::size_t tensor);
  /// Whether this step's gradient is wanted whole, to refit projectors from it.
  [[nodiscard]] bool refits_in_pass(std::size_t tensor) const;
  /// Error(bad_input) unless a gradient of so many elements is one of the tensor.
  void check(std::size_t tensor, std::size_t elements) const;
  /// From a gradient [rows, columns], fp32, which stands for the step's: that of the first micro-batch. Learned here
  /// and now, for this step's S when it is the first pair, which is not refitted from what is not finite.
  void refit(std::size_t tensor, std::span<const float> gradient, const device::ParallelFor& parallel_for);
  /// True if look() comes before refit() and leave(): the pair of a published matrix that is not its first.
  [[nodiscard]] bool looks(std::size_t tensor) const;
  /// Measures what the pair misses of such a gradient. True: more than the threshold. What is not finite counts as
  /// nothing.
  [[nodiscard]] bool look(std::size_t tensor, std::span<const float> gradient);
  /// Where such a gradient is to be left instead, so that it is refitted from behind the pass; empty: there is no room
  /// now, or it is the first pair, and refit() is to be called.
  [[nodiscard]] std::span<float> leave(std::size_t tensor);
  /// All memory that leave() may name.
  [[nodiscard]] std::span<std::vector<float>> rooms() noexcept { return rooms_; }
  /// [0]: of the output's gradient (P), [1]: of the input (Q).
  [[nodiscard]] kernels::Projector side(std::size_t tensor, unsigned side) const;
  /// Another number whenever the pair has changed; never 0.
  [[nodiscard]] std::uint64_t version(std::size_t tensor) const { return at(tensor).version; }
  [[nodiscard]] bool has_projectors(std::size_t tensor) const { return at(tensor).record.refits > 0; }
  /// The signs z [columns] of this step (subspace/bias.h).
  void signs(std::size_t tensor, std::span<float> signs) const;
  /// What goes into the gradient's record, but for the step's sample of the estimate: |S|² and |G z|², which come
  /// multiplied by square_scale(). Of a pair that is refitted from this step on there is none.
  [[nodiscard]] const optim::RefitRecord& record(std::size_t tensor) const { return at(tensor).record; }
  [[nodiscard]] bool samples(std::size_t tensor) const { return at(tensor).samples; }
  [[nodiscard]] double square_scale() const noexcept { return scale_ * scale_; }
  /// Replaces the record by one that has the sample; called before end().
  void note(std::size_t tensor, const optim::RefitRecord& record) { at(tensor).record = record; }
  /// The step has ended: applied, or skipped, and then what it refitted is forgotten.
  void end(bool applied);

  /// The records that the update of the last step applied finds in the state, and leaves there.
  struct Change {
    optim::RefitRecord before, after;
  };
  /// Until the next end(); of any thread, while that update has not ended.
  [[nodiscard]] Change change(std::size_t tensor) const { return {at(tensor).before, at(tensor).kept}; }

  // Behind a pass, by one thread but for refit(): calls of a tensor that a step has refitted, until the next open().

  /// Whether the step's gradient record is to get projectors.
  [[nodiscard]] bool refitted(std::size_t tensor) const { return at(tensor).refitted; }
  /// Refits from what leave() was given; no tiles when it is refitted already.
  void begin_refit(std::size_t tensor);
  [[nodiscard]] std::size_t refit_tiles(std::size_t tensor, unsigned part) const;
  void refit(unsigned part, std::size_t tile);
  /// The pair behind the record in `projectors` (optim::projector_fields()), unless that is null; the gradient's memory
  /// is free again.
  void end_refit(std::size_t tensor, std::byte* projectors);

  // Where several processes train together:

  /// Whether the step whose pass was opened is to refit it; the same on all.
  [[nodiscard]] bool due(std::size_t tensor) const { return at(tensor).due; }
  /// The record and the new pair, to be sent as they are here, or received.
  [[nodiscard]] std::vector<std::span<std::byte>> exchanged(std::size_t tensor, bool sends) {
    return at(tensor).list_exchanged(sends);
  }
  /// They have come: refitted() is what it is where they were made.
  void received(std::size_t tensor) { at(tensor).receive(); }
  /// True if put() has something new.
  [[nodiscard]] bool has_news(std::size_t tensor) const { return at(tensor).refitted || at(tensor).looked; }
  /// The record to `projectors`, and behind it the pair, if it is new.
  void put(std::size_t tensor, std::byte* projectors) const;

  /// What is known after the last step: the running estimate of |G - P P' G Q Q'| / |G|, and how often projectors were
  /// refitted so far.
  [[nodiscard]] double error(std::size_t tensor) const { return at(tensor).error(); }
  [[nodiscard]] std::uint64_t refits(std::size_t tensor) const {
    return static_cast<std::uint64_t>(at(tensor).kept.refits);
  }
  /// How many pairs were refitted beside passes, and inside them because there was no room.
  struct Counts {
    std::uint64_t beside = 0, inside = 0;
  };
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }

 private:
  [[nodiscard]] const PairState& at(std::size_t tensor) const;
  [[nodiscard]] PairState& at(std::size_t tensor);
  [[nodiscard]] bool is_due(const PairState& it) const;
  [[nodiscard]] bool refits_first(const PairState& it) const noexcept;
  void refit_first(PairState& it, std::span<const float> gradient, const device::ParallelFor& parallel_for);
  /// From the gradient, on the caller's threads.
  void make(const PairState& it, subspace::Projectors& pair, std::span<const float> gradient,
            const device::ParallelFor& parallel_for);
  [[nodiscard]] subspace::Projectors learned(const PairState& it, std::span<const float> gradient) const;
  [[nodiscard]] std::size_t elements(std::size_t tensor) const;
  /// The gradient that the matrix is to be refitted from.
  [[nodiscard]] std::span<const float> calibration(std::size_t tensor) const;

  const plan::Description& description_;
  const state::Layout& layout_;
  std::vector<std::optional<PairState>> matrices_;  ///< by tensor
  std::vector<std::vector<float>> rooms_;           ///< for gradients
  std::array<std::atomic<bool>, plan::kGradientsLeft> taken_ = {};
  subspace::Refit pass_, lane_;
  std::size_t learning_ = 0;  ///< the tensor that the lane refits
  bool any_ = false;
  std::int64_t updates_ = 0;
  double scale_ = 1;
  Counts counts_;
};

}  // namespace spillway::subspace
