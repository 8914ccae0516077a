// Gradients on their way from autograd to their chunks: summed over micro-batches in fp32 (RankSums), rounded once,
// with the global norm and the finite check folded into the pass that rounds. All of it is work of the device that
// passes compute on, in the order of its stream; the host waits for the norm alone, at the end of the step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "spillway/device/device.h"
#include "spillway/execute/arenas.h"
#include "spillway/execute/gradient_exchange.h"
#include "spillway/execute/gradient_targets.h"
#include "spillway/execute/rank_sums.h"
#include "spillway/execute/reduced_gradients.h"
#include "spillway/execute/sparse_embedding.h"
#include "spillway/execute/squares.h"
#include "spillway/execute/step_digests.h"
#include "spillway/execute/thread_pool.h"
#include "spillway/execute/tied_table.h"
#include "spillway/kernels/gradient.h"
#include "spillway/plan/description.h"
#include "spillway/plan/schedule.h"
#include "spillway/sink/arithmetic.h"
#include "spillway/sink/gradient_sink.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

class Gradients {
 public:
  /// `rows` may be null. The gradient of a tensor that is reduced is S. What is handed over is of the
  /// type that passes compute in, and stays until the stream has come to it. All references must outlive it.
  /// `digests`: of what is complete; may be null.
  Gradients(const plan::Schedule& schedule, const state::Layout& layout, const plan::Description& description,
            Arenas arenas, SparseEmbedding* rows, sink::GradientSink& sink, ThreadPool& thread_pool,
            const sink::Arithmetic& where, StepDigests* digests = nullptr);

  /// Micro-batches of the step, of all processes.
  void begin(std::uint64_t micro_batches);
  void open(const plan::Pass& pass);
  /// One micro-batch's gradient of tensor number `tensor` of the open block, or of the open slice.
  void take(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch);
  void take_slice(const std::byte* values, std::uint64_t micro_batch);
  /// True if lend_sum() works in this step: it has more micro-batches than virtual ranks. The answer is the same in
  /// every world.
  [[nodiscard]] bool can_lend_sums() const noexcept { return micro_batches_ > virtual_ranks_; }
  /// Instead of take(): the sum of a tensor, to which the caller adds one micro-batch's gradient by work in the stream
  /// of passes. end_sum() follows. Throws Error(bad_input) where can_lend_sums() is false, of a reduced tensor, and of
  /// a micro-batch whose gradient was taken or whose sum was lent before.
  [[nodiscard]] SumLoan lend_sum(std::size_t tensor, std::uint64_t micro_batch);
  /// The caller has added to the sum. Throws Error(bad_input) if the sum was not lent for this micro-batch.
  void end_sum(std::size_t tensor, std::uint64_t micro_batch);
  /// One micro-batch's sample of the gradient of a tensor of the open block, which is reduced.
  void take_sample(std::size_t tensor, std::span<const float> sample, std::uint64_t micro_batch) {
    reduced_.take(tensor, sample, micro_batch);
  }
  /// d loss / d output of the embedding, [tokens, columns], in host memory: the open pass is embedding_backward.
  void take_sparse(const std::byte* values);
  /// Ends the open pass: what got no gradient is zero.
  void close();

  /// Null in a world of one process. Else close() leaves sums, and gradients are complete when these have arrived.
  [[nodiscard]] GradientExchange* exchange() noexcept { return exchange_.get(); }
  /// The sums of squares of the gradient in the order in which they are to be added; 0 of what another process has.
  /// Waits for the stream. They stay until the next call.
  [[nodiscard]] const std::vector<double>& squares();
  /// Their sum, in a world of one process.
  [[nodiscard]] kernels::Norm total();

 private:
  void wait();
  void run(const device::Work& work) { where_.device.run(where_.stream, work); }
  /// A gradient of the open pass.
  struct Seen {
    std::uint8_t state = 0;  ///< 0: there was none; 1: some micro-batches'; 2: all, and it is rounded
    RankSums::Progress sums = {};
    std::uint64_t next = 0;  ///< one past the last micro-batch whose gradient is in the sum
    std::uint64_t lent = 0;  ///< one past the last micro-batch for which the sum was lent
    bool is_lent = false;    ///< end_sum() is due
  };
  /// The progress of a trainable tensor of the open block.
  [[nodiscard]] Seen& seen_of(std::size_t tensor);
  /// Throws unless `micro_batch` is `least` or a later one.
  void require_later(std::size_t tensor, std::uint64_t micro_batch, std::uint64_t least) const;
  /// One micro-batch's; whether it was the last, and nothing of other processes is due.
  bool take(const GradientTarget& target, Seen& seen, const std::byte* values, std::uint64_t micro_batch);
  /// A micro-batch's gradient is in the sum; the same.
  bool end_part(const GradientTarget& target, Seen& seen, std::uint64_t micro_batch);
  [[nodiscard]] bool summed() const noexcept { return micro_batches_ > 1 || exchange_ != nullptr; }
  /// A gradient of a layer, of whose pieces each has squares of its own.
  void finish_tensor(std::size_t tensor, const GradientTarget& target, const std::byte* values);
  /// `values`: not yet in grad, or null. `squares`: null when they are not wanted.
  void finish(const GradientTarget& target, const std::byte* values, double* squares);
  void add_digest(const GradientTarget& target, std::size_t chunk, const std::string& tensor);
  [[nodiscard]] bool apart() const noexcept { return where_.workspace != nullptr; }

  const plan::Schedule& schedule_;
  const state::Layout& layout_;
  const plan::Description& description_;
  const Arenas arenas_;
  SparseEmbedding* const rows_;
  sink::GradientSink& sink_;
  ThreadPool& thread_pool_;
  const sink::Arithmetic where_;
  StepDigests* const digests_;
  const device::Event summed_;
  RankSums sums_;
  GradientTargets targets_;
  ReducedGradients reduced_;
  const std::uint64_t virtual_ranks_;
  std::uint64_t micro_batches_ = 1, end_ = 1;  ///< of the step; and one past the last of this process
  const plan::Pass* pass_ = nullptr;
  std::vector<Seen> seen_;  ///< by tensor of the open block
  SquareSlots slots_;
  std::vector<double> host_squares_;
  double* const squares_;  ///< where the device's work writes them
  TiedTable table_;
  bool sparse_ = false;                   ///< the embedding's own rows are rounded
  double sparse_norm_ = 0;                ///< of these, with one virtual rank
  std::vector<double> squares_in_order_;  ///< what squares() returns
  std::unique_ptr<GradientExchange> exchange_;
};

}  // namespace spillway::execute
