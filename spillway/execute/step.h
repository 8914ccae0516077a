// Steps on the machine: the protocol's calls, carried out by the lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "spillway/execute/device_updates.h"
#include "spillway/execute/executor.h"
#include "spillway/execute/gradients.h"
#include "spillway/execute/pass_gradients.h"
#include "spillway/execute/passes.h"
#include "spillway/execute/piece_swaps.h"
#include "spillway/execute/protocol.h"
#include "spillway/execute/resources.h"
#include "spillway/execute/run_plan.h"
#include "spillway/execute/saving.h"
#include "spillway/execute/sparse_embedding.h"
#include "spillway/execute/step_digests.h"
#include "spillway/execute/step_values.h"
#include "spillway/execute/tensors.h"
#include "spillway/execute/tiers.h"
#include "spillway/execute/updater.h"
#include "spillway/execute/weight_exchange.h"

namespace spillway::execute {

class Step {
 public:
  /// Parts that steps work with and on; all of it must outlive them.
  struct Parts {
    const RunPlan& plan;
    Resources& resources;
    Store* store = nullptr;  ///< null: nothing is on a path
    Tiers& tiers;
    Tensors& tensors;
    Saving& saving;
  };
  /// `recovered`: `at` is of a durable step; else weights and states are to be loaded.
  Step(const Parts& parts, const StepPosition& at, bool recovered);

  /// Throws Error(bad_input), and nothing has changed, for a step that the plan has no room for, for ids outside the
  /// embedding, for hyperparameters that the optimizer cannot take, and where a step is under way.
  void begin(const StepBegin& begin);
  void embedding_forward(std::byte* output);
  [[nodiscard]] std::optional<BlockPass> next_pass();
  void end_pass() { passes_.end(); }
  void convert_pieces(std::size_t tensor, std::uint64_t first, std::uint64_t count) {
    passes_.convert_pieces(tensor, first, count);
  }
  void ask_pieces(std::size_t tensor, std::uint64_t first, std::uint64_t count) {
    passes_.ask_pieces(tensor, first, count);
  }
  [[nodiscard]] const AskedPieces& asked_pieces() const noexcept { return passes_.asked_pieces(); }
  [[nodiscard]] PassGradients& gradients() noexcept { return pass_gradients_; }

  /// After the last pass of a training step: the sum of squares of the gradient. In a world of several processes each
  /// of them calls it, and all get the same.
  kernels::Norm norm();
  /// Decides the step by the norm of the whole gradient. The update itself waits for the next step, or for settle().
  StepResult decide(const kernels::Norm& norm, const StepUpdate& update);
  /// After norm(): ends the step without a trace, so that it can be begun again. Early updates are undone.
  void abandon();
  /// Digests of the passes that have ended since the last call; empty unless StepBegin::digests. With several processes
  /// that of a gradient comes when all of them have made their part, norm() at the latest.
  [[nodiscard]] std::vector<StepDigest> take_digests() { return digests_.take(); }
  /// norm(), unless that was done, and decide(); of an evaluation neither.
  StepResult end(const StepUpdate& update);

  /// The journal is given the step that was decided, or what was loaded before the first.
  void commit(std::string_view payload);
  /// Whatever needs the last step's updates commits it first, unless that was done.
  void commit_unless_done(std::string_view payload = {});
  /// Weights and states are to be read or changed: every update is done. Throws Error(bad_input) while passes are left.
  void settle_updates();
  /// Ends the updates, and has every stored tensor on its tier; the memory above what is resident is free then.
  void settle();
  /// Weights and states are to be loaded: every update is done. Throws Error(bad_input) where a durable run has
  /// committed something.
  void load();

  [[nodiscard]] StepProtocol& protocol() noexcept { return protocol_; }
  [[nodiscard]] const StepProtocol& protocol() const noexcept { return protocol_; }
  [[nodiscard]] const Executor& executor() const noexcept { return executor_; }

 private:
  void check(const StepBegin& begin) const;
  void check(const StepUpdate& update) const;
  void require_unwritten(const StepBegin& begin);
  [[nodiscard]] kernels::Norm shared_norm();
  void swap_pieces();
  void begin_reduced(std::uint64_t micro_batches);
  void restore_reduced();
  [[nodiscard]] Publication publish();
  [[nodiscard]] Mode mode(const Publication& publication, bool passes, bool backward, bool early);
  void settle_early(const Decision& decision, StepResult& out);
  void measure(StepResult& out);

  const Parts parts_;
  const state::Layout& layout_;
  StepProtocol protocol_;
  const std::unique_ptr<SparseEmbedding> rows_;  ///< null: no embedding
  Updater updater_;
  DeviceUpdates device_updates_;
  StepDigests digests_;
  Gradients gradients_;
  WeightExchange exchange_;
  Executor executor_;
  Passes passes_;
  PassGradients pass_gradients_;
  PieceSwaps piece_swaps_;
  kernels::Norm norm_;                    ///< of the step that is to be decided
  std::optional<std::uint64_t> written_;  ///< the last step whose gradients go to the journal
  bool reduced_read_ = false;             ///< auxiliary fields in memory are those of the states
  double began_ = 0, stalled_before_ = 0;
};

}  // namespace spillway::execute
