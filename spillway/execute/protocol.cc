#include "spillway/execute/protocol.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "spillway/base/error.h"

namespace spillway::execute {

enum class StepProtocol::Call : std::uint8_t {
  load,
  commit,
  publish,
  begin,
  norm,
  abandon,
  decide,
  evaluate,
  end_evaluation
};

namespace {

using States = std::uint8_t;  // one bit for each

constexpr States bit(StepState state) {
  return static_cast<States>(1U << static_cast<unsigned>(state));
}

struct Rule {
  const char* call;
  States from;
};

/// One rule per call.
constexpr std::array<Rule, 9> kRules = {{
    {"loading", bit(StepState::begin) | bit(StepState::decide) | bit(StepState::commit) | bit(StepState::publish)},
    {"commit()", bit(StepState::begin) | bit(StepState::decide)},
    {"publishing an update", bit(StepState::commit)},
    {"begin_step()", bit(StepState::publish)},
    {"the norm", bit(StepState::passes)},
    {"abandon_step()", bit(StepState::norm)},
    {"the decision", bit(StepState::norm)},
    {"begin_step() of an evaluation", bit(StepState::begin) | bit(StepState::decide) | bit(StepState::publish)},
    {"end_step() of an evaluation", bit(StepState::evaluate)},
}};

/// Situation of each state: the last call, and the calls that may follow.
constexpr std::array<const char*, 7> kSituations = {
    "nothing was committed yet",
    "the block passes of a step are under way, which end_step() ends",
    "the norm of a step is known, by which it is decided next",
    "a step is decided, which is committed next",
    "a step is committed, whose update is published next",
    "the step before is done, and begin_step() begins the next one",
    "the block passes of an evaluation are under way, which end_step() ends",
};

}  // namespace

StepProtocol::StepProtocol(const Options& options, const StepPosition& at, bool recovered)
    : options_(options),
      state_(recovered ? StepState::publish : StepState::begin),
      resting_(state_),
      at_(at),
      scaler_(options.scales_loss) {
  publication_.update = optim::make_step(*options.optimizer, {});
}

void StepProtocol::refuse(const char* call) const {
  throw Error(ErrorCode::bad_input, text(call, " is out of order: ", kSituations[static_cast<std::size_t>(state_)]));
}

void StepProtocol::require(Call call) const {
  const auto& rule = kRules[static_cast<std::size_t>(call)];
  if ((rule.from & bit(state_)) == 0) refuse(rule.call);
  const bool settled = call == Call::load || call == Call::evaluate;
  if (settled && pending()) refuse(rule.call);
}

void StepProtocol::require_idle(const char* call) const {
  if (in_passes() || state_ == StepState::norm) refuse(call);
}

void StepProtocol::require_passes(const char* call) const {
  if (!in_passes()) refuse(call);
}

void StepProtocol::load() const {
  require(Call::load);
}

void StepProtocol::load_updates(std::int64_t updates) {
  require(Call::load);
  at_.updates = updates;
}

void StepProtocol::load_step(std::uint64_t step) {
  require(Call::load);
  at_.step = at_.applied = step;
}

void StepProtocol::load_scale(const LossScaler::State& scale) {
  require(Call::load);
  scaler_.restore(scale);
}

Commitment StepProtocol::commitment() const {
  Commitment out{.at = at_, .skipped = skipped_, .update = publication_.update};
  out.update.step = at_.updates;
  return out;
}

Commitment StepProtocol::commit() {
  require(Call::commit);
  state_ = StepState::commit;
  return commitment();
}

Publication StepProtocol::publish() {
  require(Call::publish);
  state_ = StepState::publish;
  auto out = publication_;
  publication_.pending = publication_.kept = false;
  return out;
}

std::optional<optim::Step> StepProtocol::begin(const std::optional<StepUpdate>& expected) {
  require(Call::begin);
  std::optional<optim::Step> predicted;
  if (expected && options_.early && expects_no_clipping(*expected)) {
    predicted = update_of(*expected, 1 / static_cast<float>(scaler_.scale()), at_.updates + 1);
  }
  state_ = StepState::passes;
  return predicted_ = predicted;
}

bool StepProtocol::expects_no_clipping(const StepUpdate& update) const noexcept {
  return update.max_grad_norm <= 0 || (options_.speculates && unclipped_ >= kUnclippedSteps);
}

void StepProtocol::norm() {
  require(Call::norm);
  state_ = StepState::norm;
}

void StepProtocol::abandon() {
  require(Call::abandon);
  state_ = StepState::publish;
  predicted_.reset();
}

Decision StepProtocol::decide(const kernels::Norm& norm, const StepUpdate& update) {
  require(Call::decide);
  check(update);
  state_ = StepState::decide;
  Decision out{.loss_scale = scaler_.scale(), .skipped = update.skip || !norm.finite()};
  out.grad_norm = std::sqrt(norm.sum) / out.loss_scale;
  if (update.max_grad_norm > 0) {  // torch.nn.utils.clip_grad_norm_, in fp32
    out.clip = std::min(1.0F, static_cast<float>(update.max_grad_norm) / (static_cast<float>(out.grad_norm) + 1e-6F));
  }
  scaler_.ended(norm.finite());
  unclipped_ = out.skipped || out.clip != 1 ? 0 : unclipped_ + 1;
  skipped_ = out.skipped;
  ++at_.step;
  if (out.skipped) return out;
  ++at_.updates;
  at_.applied = at_.step;
  const auto decided = update_of(update, out.clip / static_cast<float>(out.loss_scale), at_.updates);
  out.kept = predicted_ == decided;
  publication_ = {.pending = true, .kept = out.kept, .update = decided};
  return out;
}

optim::Step StepProtocol::update_of(const StepUpdate& update, float factor, std::int64_t number) const {
  auto named = update.hyperparameters;
  named.emplace("learning_rate", update.learning_rate);
  named.emplace("weight_decay", update.weight_decay);
  auto out = optim::make_step(*options_.optimizer, named);
  out.gradient_scale = factor;
  out.step = number;
  out.seed = options_.seed;
  return out;
}

void StepProtocol::evaluate() {
  require(Call::evaluate);
  resting_ = state_;
  state_ = StepState::evaluate;
}

void StepProtocol::end_evaluation() {
  require(Call::end_evaluation);
  state_ = resting_;
}

}  // namespace spillway::execute
