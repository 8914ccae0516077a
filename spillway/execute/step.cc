#include "spillway/execute/step.h"

#include "spillway/base/error.h"

namespace spillway::execute {

// ---- begin

void Step::begin(const StepBegin& begin) {
  protocol_.require_idle("begin_step()");
  check(begin);
  if (!begin.training) settle_updates();
  parts_.tensors.settle();
  if (begin.training) {
    require_unwritten(begin);
    begin_reduced(begin.counts.size());
    commit_unless_done();
    if (!begin.trial) swap_pieces();
  }
  if (rows_) rows_->begin(begin.ids, begin.counts);
  began_ = executor_.now();
  executor_.settle_waits();
  stalled_before_ = executor_.waits().sum();
  gradients_.begin(begin.counts.size());
  digests_.begin(begin.digests);
  if (!begin.training) {
    protocol_.evaluate();
    return passes_.begin(mode({}, true, false, false));
  }
  const auto pending = publish();
  const auto predicted = protocol_.begin(begin.update);
  if (predicted) updater_.set_early(*predicted);
  auto its_mode = mode(pending, true, true, predicted.has_value());
  its_mode.trial = begin.trial;
  passes_.begin(its_mode);
}

Mode Step::mode(const Publication& publication, bool passes, bool backward, bool early) {
  const auto& at = protocol_.position();
  return {.update = publication.pending,
          .passes = passes,
          .backward = backward,
          .early = early,
          .kept = publication.kept,
          .stored = parts_.tiers.take_stored(),
          .updated = at.applied,
          .updates = static_cast<std::uint64_t>(at.updates),
          .step = at.step + 1,
          .packed_rows = rows_ ? rows_->packed_bytes() : 0};
}

// ---- passes

void Step::embedding_forward(std::byte* output) {
  protocol_.require_passes("embedding_forward()");
  passes_.embedding_forward(output);
}

std::optional<BlockPass> Step::next_pass() {
  protocol_.require_passes("next_pass()");
  return passes_.next();
}

// ---- end

StepResult Step::decide(const kernels::Norm& norm, const StepUpdate& update) {
  check(update);
  const auto decision = protocol_.decide(norm, update);
  StepResult out{.grad_norm = decision.grad_norm,
                 .clip = decision.clip,
                 .loss_scale = decision.loss_scale,
                 .skipped = decision.skipped};
  if (layout_.reduction() != nullptr) parts_.resources.gradient_sink().end(!decision.skipped);
  settle_early(decision, out);
  measure(out);
  return out;
}

void Step::measure(StepResult& out) {
  executor_.settle_waits();
  out.step = protocol_.position().updates;
  out.seconds = executor_.now() - began_;
  out.stall_seconds = executor_.waits().sum() - stalled_before_;
}

/// Early updates stay where they applied what was decided; else the old versions are put back.
void Step::settle_early(const Decision& decision, StepResult& out) {
  const auto& chunks = executor_.end_early();
  out.early = chunks.size();
  if (decision.kept) return;
  updater_.undo().restore(chunks, parts_.resources.thread_pool());
  out.undone = chunks.size();
}

void Step::abandon() {
  protocol_.abandon();
  if (layout_.reduction() != nullptr) parts_.resources.gradient_sink().end(false);
  StepResult undone;
  settle_early({}, undone);
}

StepResult Step::end(const StepUpdate& update) {
  const bool is_summed = protocol_.state() == StepState::norm;
  if (!is_summed) protocol_.require_passes("end_step()");
  passes_.require_ended();
  if (protocol_.state() == StepState::evaluate) {
    protocol_.end_evaluation();
    StepResult out;
    measure(out);
    return out;
  }
  check(update);
  return decide(is_summed ? norm_ : norm(), update);
}

}  // namespace spillway::execute
