// These values go between a caller and a step: what begins it, what it applies, and what came of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "spillway/optim/step.h"

namespace spillway::execute {

struct StepUpdate {
  double learning_rate = 0;
  double weight_decay = 0;
  double max_grad_norm = 0;                 ///< 0: no clipping
  bool skip = false;                        ///< the step ends without an update, as one whose gradient is not finite
  optim::NamedValues hyperparameters = {};  ///< further ones (optim/step.h); what is not there has its default
};

struct StepBegin {
  std::span<const std::int64_t> ids;  ///< token ids of all micro-batches; empty without an embedding
  /// Tokens of each micro-batch, virtual rank by virtual rank (plan/virtual_ranks.h), and so are `ids`.
  std::vector<std::uint64_t> counts;
  bool training = true;  ///< false: forward and head_loss passes only
  /// Update that end_step() is expected to get: chunks that the plan updates early are updated by it. If end_step() is
  /// given another one, or nothing was expected, they are put back and the result is the same.
  std::optional<StepUpdate> update = std::nullopt;
  /// Digests of weights and gradients are made, for take_digests().
  bool digests = false;
  /// Gradients go to no path: the step ends in abandon(), or has the gradients of one that was abandoned.
  bool trial = false;
};

struct StepResult {
  double grad_norm = 0;      ///< before clipping
  double clip = 1;           ///< factor applied to the gradient
  double loss_scale = 1;     ///< of this step; the gradient is given multiplied by it
  bool skipped = false;      ///< a gradient was not finite: no update
  std::int64_t step = 0;     ///< optimizer steps so far
  double seconds = 0;        ///< from begin_step() to here
  double stall_seconds = 0;  ///< of these, waiting in next_pass()
  std::size_t early = 0;     ///< chunks that were updated during backward
  std::size_t undone = 0;    ///< of these, put back: the step was skipped, or decided otherwise
};

}  // namespace spillway::execute
