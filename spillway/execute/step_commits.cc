// Commits of steps, and the updates that are pending between two of them.
#include "spillway/base/error.h"
#include "spillway/execute/step.h"

namespace spillway::execute {

/// The journal takes the gradients of a step once.
void Step::require_unwritten(const StepBegin& begin) {
  if (begin.trial || parts_.plan.plan.durability != plan::Durability::step) return;
  const auto step = protocol_.position().step + 1;
  if (written_ == step) {
    throw Error(ErrorCode::bad_input, text("step ", step, " was abandoned after its gradients were written to the ",
                                           "storage paths; close the run and resume it"));
  }
  written_ = step;
}

void Step::commit(std::string_view payload) {
  const bool durable = parts_.saving.durable();
  if (durable && protocol_.state() == StepState::begin) {  // what every later step is replayed from
    settle();
    if (parts_.plan.plan.durability == plan::Durability::step) {
      parts_.saving.publish_snapshots(protocol_.position().step);
    }
  }
  const auto commitment = protocol_.commit();
  if (durable) parts_.saving.commit(commitment, payload);
}

void Step::commit_unless_done(std::string_view payload) {
  if (protocol_.state() == StepState::begin || protocol_.state() == StepState::decide) commit(payload);
}

/// The update of the step before, where one is pending, is what the lanes apply from now on.
Publication Step::publish() {
  if (protocol_.state() != StepState::commit) return {};
  auto out = protocol_.publish();
  if (!out.pending) return out;
  updater_.set(out.update);
  device_updates_.set(out.update);
  return out;
}

/// Pieces that have all their bytes take their new places, and others begin to move. Updates of the last step may be
/// pending: they change none of these weights, and keep their memory.
void Step::swap_pieces() {
  if (piece_swaps_.is_ready()) {
    executor_.drain();
    piece_swaps_.apply();
  }
  piece_swaps_.start();
}

void Step::settle_updates() {
  if (passes_.left()) protocol_.require_idle("reading or changing weights");
  if (protocol_.pending()) commit_unless_done();
  if (const auto pending = publish(); pending.pending || updater_.has_waiting()) {
    executor_.begin(mode(pending, false, false, false));
    if (executor_.next() != nullptr) throw Error(ErrorCode::internal, "a flush has passes");
  }
  executor_.drain();
  piece_swaps_.wait();
  piece_swaps_.apply();
}

void Step::settle() {
  settle_updates();
  parts_.tensors.settle();
}

void Step::load() {
  if (parts_.saving.durable() && protocol_.state() != StepState::begin) {
    throw Error(ErrorCode::bad_input, "this run is durable and has begun; weights and states change by steps alone");
  }
  settle_updates();
  protocol_.load();
  reduced_read_ = false;
}

}  // namespace spillway::execute
