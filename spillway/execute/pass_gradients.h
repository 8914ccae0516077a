// Gradients that the caller hands over in a block's backward pass, or the factors of a reduced matrix's gradient.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "spillway/execute/gradients.h"
#include "spillway/execute/passes.h"
#include "spillway/execute/resources.h"

namespace spillway::execute {

/// Every call throws Error(bad_input) outside the pass that it belongs to, and of what is frozen. Gradients, tokens and
/// samples lie in the memory that passes compute in.
class PassGradients {
 public:
  /// All references must outlive it.
  PassGradients(const RunPlan& plan, Resources& resources, const Passes& passes, Gradients& gradients);

  /// One micro-batch's gradient of a tensor of the block, in the compute type. Micro-batches rise.
  void layer(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch);
  /// As Gradients has them.
  [[nodiscard]] bool can_lend_sums() const noexcept { return gradients_.can_lend_sums(); }
  [[nodiscard]] SumLoan lend_sum(std::size_t tensor, std::uint64_t micro_batch);
  void end_sum(std::size_t tensor, std::uint64_t micro_batch);
  /// The gradient of the head's slice, [rows, columns].
  void head(const std::byte* values, std::uint64_t micro_batch);
  /// d loss / d embedding output, [tokens, columns].
  void embedding(const std::byte* values);

  // The following are for a tensor that is reduced, as sink::GradientSink has them:

  [[nodiscard]] bool wants_whole_gradient(std::size_t tensor, std::uint64_t micro_batch) const;
  void whole_gradient(std::size_t tensor, std::span<const float> gradient);
  void compress(std::size_t tensor, unsigned side, const std::byte* in, std::size_t in_stride, std::size_t tokens,
                std::byte* out);
  void signs(std::size_t tensor, std::span<float> out) const;
  /// One micro-batch's G z [rows], fp32, by the signs z of the step; it stays until the stream has come to it.
  void sample(std::size_t tensor, std::span<const float> seen, std::uint64_t micro_batch);

 private:
  [[nodiscard]] sink::GradientSink& sink_of(std::size_t tensor, const char* call) const;
  void require_trainable(const plan::Pass& pass, const char* call) const;

  const state::Layout& layout_;
  Resources& resources_;
  const Passes& passes_;
  Gradients& gradients_;
};

}  // namespace spillway::execute
