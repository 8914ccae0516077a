// The protocol of a step: which call may follow which, and the values that one hands to the next. It has no threads,
// moves nothing and computes nothing but the decision.
//
//   begin ----> commit -> publish -> passes -> norm -> decide -> commit -> publish -> ...
//                            <- abandon --
//
// A step that is abandoned leaves no trace, and may be begun again: so it is computed twice before it is decided.
// The norm and the decision are two calls: between them the parts of the norm of several processes are added. So are
// the commit and its publication: between them they agree that the step is durable everywhere. An evaluation begins
// where no update is pending, and ends there.
#pragma once

#include <cstdint>
#include <optional>

#include "spillway/execute/loss_scaler.h"
#include "spillway/execute/step_values.h"
#include "spillway/kernels/gradient.h"
#include "spillway/optim/optimizers.h"
#include "spillway/optim/step.h"

namespace spillway::execute {

/// Last call of the protocol.
enum class StepState : std::uint8_t {
  begin,     ///< nothing: what the run begins with is loaded, or being loaded
  passes,    ///< a training step has begun; its block passes are under way
  norm,      ///< the gradient is complete, and this process's part of its norm is known
  decide,    ///< clip factor, skip and update are decided
  commit,    ///< what was decided was given to the journal
  publish,   ///< the update was given to the lanes; the next step may begin
  evaluate,  ///< an evaluation has begun; its block passes are under way
};

/// How far a run has come.
struct StepPosition {
  std::uint64_t step = 0;     ///< training steps decided, skipped ones included
  std::uint64_t applied = 0;  ///< the last of them that was not skipped
  std::int64_t updates = 0;   ///< of them, those that were not skipped
  friend bool operator==(const StepPosition&, const StepPosition&) = default;
};

/// Outcome of a step.
struct Decision {
  double grad_norm = 0;   ///< before clipping, the loss scale undone
  double loss_scale = 1;  ///< that the gradient was given with
  float clip = 1;         ///< factor applied to the gradient
  bool skipped = false;   ///< the gradient is not finite, or the caller skips: there is no update
  bool kept = false;      ///< what was predicted is what was decided: early updates stay
};

/// Content of a commit about its step.
struct Commitment {
  StepPosition at;
  bool skipped = false;
  optim::Step update;  ///< of the last step that was not skipped; its number is at.updates
};

/// Work of the lanes for the step that was committed.
struct Publication {
  bool pending = false;  ///< there is an update that was not done
  bool kept = false;     ///< what was done of it early is not done again
  optim::Step update;    ///< matters when it is pending
};

class StepProtocol {
 public:
  struct Options {
    const optim::Descriptor* optimizer = &optim::adamw;
    std::uint64_t seed = 0;    ///< of stochastic rounding
    bool scales_loss = false;  ///< gradients are fp16
    bool early = false;        ///< the plan has chunks that are updated early
    bool speculates = false;   ///< they are even where the step may clip
  };
  /// After so many steps in a row without clipping the next one is expected to need none.
  static constexpr unsigned kUnclippedSteps = 3;

  /// `recovered`: `at` is of a durable step, and nothing is to be loaded; else state `begin`.
  explicit StepProtocol(const Options& options, const StepPosition& at = {}, bool recovered = false);

  [[nodiscard]] StepState state() const noexcept { return state_; }
  [[nodiscard]] const StepPosition& position() const noexcept { return at_; }
  [[nodiscard]] const LossScaler& scaler() const noexcept { return scaler_; }
  /// There is an update that was decided and not published.
  [[nodiscard]] bool pending() const noexcept { return publication_.pending; }
  /// A training step's or an evaluation's block passes are under way.
  [[nodiscard]] bool in_passes() const noexcept { return state_ == StepState::passes || state_ == StepState::evaluate; }
  /// Content of the last commit, or of the next one.
  [[nodiscard]] Commitment commitment() const;
  /// Throw Error(bad_input), naming `call`, while a step or an evaluation is under way, or while none is.
  void require_idle(const char* call) const;
  void require_passes(const char* call) const;

  /// Throws Error(bad_input) where the optimizer has no such hyperparameters.
  void check(const StepUpdate& update) const { static_cast<void>(update_of(update, 1, 1)); }

  // Each of these throws Error(bad_input) and changes nothing where its state does not allow it:

  /// Weights and states are loaded; neither in passes nor with an update pending. Then: after how many updates, or
  /// training steps, and with which loss scale.
  void load() const;
  void load_updates(std::int64_t updates);
  void load_step(std::uint64_t step);
  void load_scale(const LossScaler::State& scale);
  /// begin, decide -> commit.
  Commitment commit();
  /// commit -> publish.
  Publication publish();
  /// publish -> passes. Returns what early updates of the step apply; none when they cannot be right. `expected`: what
  /// decide() will be given, as far as that is known.
  std::optional<optim::Step> begin(const std::optional<StepUpdate>& expected);
  /// passes -> norm.
  void norm();
  /// norm -> publish. The step is as if it had not begun.
  void abandon();
  /// norm -> decide. `norm`: of the whole gradient, added over all processes.
  Decision decide(const kernels::Norm& norm, const StepUpdate& update);
  /// begin, decide, publish -> evaluate, and back. Not with an update pending.
  void evaluate();
  void end_evaluation();

 private:
  enum class Call : std::uint8_t;
  void require(Call call) const;
  [[noreturn]] void refuse(const char* call) const;
  [[nodiscard]] bool expects_no_clipping(const StepUpdate& update) const noexcept;
  [[nodiscard]] optim::Step update_of(const StepUpdate& update, float factor, std::int64_t number) const;

  const Options options_;
  StepState state_;
  StepState resting_;  ///< state that an evaluation goes back to
  StepPosition at_;
  LossScaler scaler_;
  unsigned unclipped_ = 0;                ///< steps in a row that were neither clipped nor skipped
  std::optional<optim::Step> predicted_;  ///< what early updates of this step apply
  bool skipped_ = false;                  ///< the last step was
  Publication publication_;               ///< of the last step that was decided
};

}  // namespace spillway::execute
