// Gradients of reduced matrices beside S: samples of them, summed over micro-batches as S is, and the record that an
// update finds behind S. Work of the device that passes compute on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spillway/execute/rank_sums.h"
#include "spillway/plan/description.h"
#include "spillway/sink/arithmetic.h"
#include "spillway/sink/gradient_sink.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

class ReducedGradients {
 public:
  /// References must outlive it.
  ReducedGradients(const plan::Description& description, const state::Layout& layout, sink::GradientSink& sink,
                   const sink::Arithmetic& where);

  /// A step begins, of which this process has such ranks.
  void begin(const plan::VirtualRanks& own) noexcept { sums_.begin(own); }
  /// A backward pass of the block begins.
  void open(const state::Block& block);
  /// One micro-batch's sample [rows], fp32, where passes compute; it stays until the stream has come to it. Throws
  /// Error(bad_input) for a tensor that is not reduced, and for one of other rows.
  void take(std::size_t tensor, std::span<const float> sample, std::uint64_t micro_batch);
  /// Ends the sums over this process's micro-batches.
  void finish(std::size_t tensor);
  /// Place of these sums in the memory that passes compute in.
  [[nodiscard]] RankSums::Place sums(std::size_t tensor) const;
  /// Place of the sums in host memory, from which other processes get them. They stay until the tensor's next pass.
  [[nodiscard]] RankSums::Place sent(std::size_t tensor);

  /// S is complete, and `squares` are its tiles' sums: writes what an update needs beside it to `out`. `any`: there was
  /// a gradient of it; else the squares become 0. A step whose gradients were not finite before there was anything to
  /// reduce them by becomes one to be skipped.
  void close(std::size_t tensor, bool any, std::span<double> squares, std::byte* out);
  /// The same where other processes have made parts of S, and of its samples, whose sum over all is `sample` [rows].
  void close(std::size_t tensor, std::span<const double> squares, float* sample, std::byte* out);

 private:
  struct Samples {
    std::uint64_t first = 0;  ///< element from the start of the sums
    std::uint64_t sent = 0;   ///< of those that are sent
    bool any = false;
    RankSums::Progress progress = {};
  };
  [[nodiscard]] std::uint64_t rows(std::size_t tensor) const { return layout_.tensors()[tensor].reduced.rows; }

  const state::Layout& layout_;
  sink::GradientSink& sink_;
  const sink::Arithmetic where_;
  const bool by_rank_;  ///< a rank without a micro-batch counts as one of zeros
  const bool sends_;    ///< from the device, where passes compute, to host memory
  const unsigned count_;
  RankSums sums_;
  std::vector<Samples> samples_;  ///< by tensor
  std::uint64_t stride_ = 0;      ///< elements from one sum to the next
  std::uint64_t sent_ = 0;        ///< elements from one to the next of those that are sent
  std::vector<float> host_;       ///< the sums, without a device that has memory of its own, or those that are sent
  float* memory_ = nullptr;
};

}  // namespace spillway::execute
