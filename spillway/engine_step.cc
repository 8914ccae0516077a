// EngineStep: what is asked of a step, handed to the run.
#include "spillway/engine_parts.h"
#include "spillway/plan/conversion.h"
#include "spillway/sink/arithmetic.h"

namespace spillway {
namespace {

device::Logits logits_of(const EngineParts& parts, const LogitsSlice& it) {
  const auto type = parts.description().computes();
  return {type, it.values, it.tokens, it.rows, it.stride, it.first_row, it.labels};
}

}  // namespace

void EngineStep::begin_step(const StepBegin& begin) {
  parts_->run().step().begin(begin);
}
void EngineStep::embedding_forward(std::byte* output) {
  parts_->run().step().embedding_forward(output);
}
std::optional<BlockPass> EngineStep::next_pass() {
  return parts_->run().step().next_pass();
}
void EngineStep::end_pass() {
  parts_->run().step().end_pass();
}

std::span<std::byte> EngineStep::memory() const {
  return parts_->run().resources().host();
}
std::span<std::byte> EngineStep::device_memory() const {
  return parts_->run().resources().computing();
}
std::optional<int> EngineStep::gpu() const {
  return parts_->plan().placement.device ? execute::gpu_of(parts_->settings().device.name) : std::nullopt;
}
std::uint64_t EngineStep::tensor_offset(std::size_t tensor) const {
  return plan::weight_first(parts_->description(), parts_->layout(), tensor);
}

void EngineStep::convert_pieces(std::size_t tensor, std::uint64_t first, std::uint64_t count) {
  parts_->run().step().convert_pieces(tensor, first, count);
}

void EngineStep::ask_pieces(std::size_t tensor, std::uint64_t first, std::uint64_t count) {
  parts_->run().step().ask_pieces(tensor, first, count);
}

void EngineStep::gradient(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch) {
  parts_->run().step().gradients().layer(tensor, values, micro_batch);
}
bool EngineStep::can_lend_sums() const {
  return parts_->run().step().gradients().can_lend_sums();
}
execute::SumLoan EngineStep::lend_sum(std::size_t tensor, std::uint64_t micro_batch) {
  return parts_->run().step().gradients().lend_sum(tensor, micro_batch);
}
void EngineStep::end_sum(std::size_t tensor, std::uint64_t micro_batch) {
  parts_->run().step().gradients().end_sum(tensor, micro_batch);
}
void EngineStep::head_gradient(const std::byte* values, std::uint64_t micro_batch) {
  parts_->run().step().gradients().head(values, micro_batch);
}
void EngineStep::embedding_backward(const std::byte* values) {
  parts_->run().step().gradients().embedding(values);
}

bool EngineStep::wants_whole_gradient(std::size_t tensor, std::uint64_t micro_batch) const {
  return parts_->run().step().gradients().wants_whole_gradient(tensor, micro_batch);
}
void EngineStep::whole_gradient(std::size_t tensor, std::span<const float> gradient) {
  parts_->run().step().gradients().whole_gradient(tensor, gradient);
}
void EngineStep::compress(std::size_t tensor, unsigned side, const std::byte* in, std::size_t in_stride,
                          std::size_t tokens, std::byte* out) {
  parts_->run().step().gradients().compress(tensor, side, in, in_stride, tokens, out);
}
void EngineStep::signs(std::size_t tensor, std::span<float> out) const {
  parts_->run().step().gradients().signs(tensor, out);
}
void EngineStep::sample(std::size_t tensor, std::span<const float> values, std::uint64_t micro_batch) {
  parts_->run().step().gradients().sample(tensor, values, micro_batch);
}

void EngineStep::loss_stats(const LogitsSlice& logits, float* maximum, float* sum, float* gold) {
  parts_->run().resources().compute(device::LossStats{logits_of(*parts_, logits), maximum, sum, gold});
}
void EngineStep::loss_gradient(const LogitsSlice& logits, const float* maximum, const float* log_sum, float scale) {
  parts_->run().resources().compute(device::LossGradient{logits_of(*parts_, logits), maximum, log_sum, scale});
}
void EngineStep::compute(const device::Work& work) {
  parts_->run().resources().compute(work);
}

StepResult EngineStep::end_step(const StepUpdate& update) {
  return parts_->run().step().end(update);
}
kernels::Norm EngineStep::norm() {
  return parts_->run().step().norm();
}
void EngineStep::abandon_step() {
  parts_->run().step().abandon();
}
std::vector<StepDigest> EngineStep::take_digests() {
  return parts_->run().step().take_digests();
}
std::uint64_t EngineStep::digest(std::span<const std::byte> bytes) {
  return execute::digest(bytes, parts_->run().resources().thread_pool());
}
StepResult EngineStep::decide(const kernels::Norm& norm, const StepUpdate& update) {
  return parts_->run().step().decide(norm, update);
}

execute::LossScaler::State EngineStep::loss_scale() const {
  return parts_->run().step().protocol().scaler().state();
}
void EngineStep::set_loss_scale(const execute::LossScaler::State& state) {
  parts_->run().step().protocol().load_scale(state);
}

}  // namespace spillway
