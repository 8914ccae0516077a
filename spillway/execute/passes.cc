#include "spillway/execute/passes.h"

#include <utility>

#include "spillway/base/error.h"

namespace spillway::execute {

using plan::kNone;
using plan::Operand;
using plan::PassKind;

Passes::Passes(const RunPlan& plan, Resources& resources, SparseEmbedding* rows, Gradients& gradients,
               Executor& executor, const WeightSlots& slots, StepDigests* digests)
    : schedule_(plan.plan.schedule),
      layout_(plan.layout),
      arenas_(resources.arenas()),
      arithmetic_(resources.arithmetic()),
      thread_pool_(resources.thread_pool()),
      rows_(rows),
      gradients_(gradients),
      executor_(executor),
      slots_(slots),
      digests_(digests),
      conversion_(plan.description, layout_, schedule_, arenas_, resources.arithmetic(), slots),
      asked_pieces_(layout_, plan.plan.placement, slots) {}

void Passes::begin(const Mode& mode) {
  executor_.begin(mode);
  asked_pieces_.begin_step(mode.backward && !mode.trial);
  open_ = nullptr;
  left_ = true;
  packed_ = false;
}

void Passes::require_ended() {
  if (left_ && executor_.next() != nullptr) {
    throw Error(ErrorCode::bad_input, "end_step() before the last pass has ended");
  }
  left_ = false;
}

void Passes::embedding_forward(std::byte* output) {
  if (rows_ == nullptr) throw Error(ErrorCode::bad_input, "this model has no embedding block");
  packed_ = output == nullptr && schedule_.shared(Operand::packed_input) != kNone;
  if (output == nullptr) output = first_input();
  const auto& block = layout_.blocks()[rows_->block()];
  for (std::size_t i = 0; i < block.chunks; ++i) {
    const auto* pass = executor_.next();
    const auto& chunk = layout_.chunks()[block.first_chunk + pass->slice];
    const auto* const weights = at(pass->weights.front().here);
    if (packed_) {
      rows_->pack(chunk, weights, output, thread_pool_);
    } else {
      rows_->gather(chunk, weights, output, thread_pool_);
    }
    end(*pass);
  }
}

std::byte* Passes::first_input() const {
  if (const auto rows = schedule_.shared(Operand::gathered_rows); rows != kNone) return at(rows);
  throw Error(ErrorCode::bad_input, "no layer takes the embedding's rows; pass an output");
}

std::optional<BlockPass> Passes::next() {
  open_ = executor_.next();
  left_ = open_ != nullptr;
  if (!left_) return std::nullopt;
  if ((*open_)[Operand::gradient] != kNone) gradients_.open(*open_);
  return describe(*open_);
}

void Passes::end() {
  if (open_ == nullptr) throw Error(ErrorCode::bad_input, "end_pass() without a pass");
  if ((*open_)[Operand::gradient] != kNone) gradients_.close();
  end(*std::exchange(open_, nullptr));
}

void Passes::end(const plan::Pass& pass) {
  if (digests_ != nullptr) digests_->add_weights(pass);
  executor_.done();
}

/// Slots of the pieces that passes ask for.
template <class Body>
void Passes::each_asked(std::size_t tensor, std::uint64_t first, std::uint64_t count, const Body& body) const {
  if (open_ == nullptr) throw Error(ErrorCode::bad_input, "pieces are asked for without a pass");
  if (!layout_.tensors().at(tensor).spec.is_asked()) return;
  for (const auto& span : plan::piece_spans(layout_, tensor, first, count)) {
    body(plan::Range{static_cast<plan::Index>(slots_.slot_of(span.chunk)), 1});
  }
}

void Passes::ask_pieces(std::size_t tensor, std::uint64_t first, std::uint64_t count) {
  each_asked(tensor, first, count, [&](plan::Range slots) { executor_.ask(slots); });
  asked_pieces_.add(tensor, first, count);
}

void Passes::convert_pieces(std::size_t tensor, std::uint64_t first, std::uint64_t count) {
  ask_pieces(tensor, first, count);
  each_asked(tensor, first, count, [&](plan::Range slots) { executor_.await(slots); });
  conversion_.convert_pieces(*open_, tensor, first, count);
}

const plan::Pass& Passes::open(PassKind kind, const char* call) const {
  if (open_ == nullptr || open_->kind != kind) throw Error(ErrorCode::bad_input, text(call, " outside its pass"));
  return *open_;
}

std::byte* Passes::input_of(const plan::Pass& pass) const {
  auto* const input = at(pass[Operand::input]);
  const auto* const packed = at(pass[Operand::packed_input]);
  if (packed_ && packed != nullptr) arithmetic_.device.run(arithmetic_.stream, rows_->unpack(packed, input));
  return input;
}

BlockPass Passes::describe(const plan::Pass& pass) const {
  BlockPass out{.kind = pass.kind, .block = pass.block, .slice = pass.slice};
  out.weights = conversion_.weights(pass);
  out.input = input_of(pass);
  out.output = at(pass[Operand::output]);
  out.hidden_gradient = at(pass[Operand::hidden_gradient]);
  out.accumulator = reinterpret_cast<float*>(at(pass[Operand::head_sums]));
  out.spilled = at(pass[Operand::saved]);
  if (pass[Operand::saved] != kNone) out.spilled_bytes = schedule_.buffers[pass[Operand::saved]].bytes;
  out.features = at(pass[Operand::features]);
  if (pass[Operand::features] != kNone) out.feature_bytes = schedule_.buffers[pass[Operand::features]].bytes;
  if (traits(pass.kind).of_layer) return out;
  const auto& block = layout_.blocks()[pass.block];
  const auto& chunk = layout_.chunks()[block.first_chunk + pass.slice];
  out.first_row = chunk.first / block.columns;
  out.rows = chunk.used / block.columns;
  return out;
}

}  // namespace spillway::execute
