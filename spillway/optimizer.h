// An optimizer for weights that stay where they are: for loops that are not Spillway's, whose model is in memory and
// whose optimizer state is to be smaller, or elsewhere. States live in DRAM, or stream through a window from storage
// paths. `spillway.optim` is its Python face.
//
//   spillway::Optimizer optimizer({{"weight", elements, type}}, {.format = state::StateFormat::bf16, .threads = 4});
//   optimizer.step({{{.tensor = 0, .weight = weight, .grad = grad, .step = {.learning_rate = 1e-3}}}});
//
// One thread drives it. The state does not outlive the process: fetch() it into a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "spillway/engine.h"
#include "spillway/optim/step.h"
#include "spillway/state/rule.h"

namespace spillway {

struct OptimizerTensor {
  std::string name;                                    ///< for messages
  std::uint64_t elements = 0;                          ///< > 0
  state::ComputeType type = state::ComputeType::fp32;  ///< of weight and gradient
};

struct OptimizerSettings {
  const optim::Descriptor* optimizer = &optim::adamw;  ///< of element scope
  state::StateFormat format = state::StateFormat::exact;
  std::uint64_t seed = 0;             ///< of stochastic rounding
  unsigned threads = 1;               ///< that update, the caller included
  std::vector<StoragePlace> storage;  ///< empty: states in DRAM
  Bytes staging = 256 * MiB;          ///< of memory for states on their way, with storage
  std::string run = "optimizer";      ///< identity, written into the volumes
  bool overwrite = false;             ///< replace volumes of another run
};

/// One array of a tensor's state.
struct StateArray {
  std::string name;           ///< "residual", "exp_avg", "exp_avg_scale", ...
  std::uint64_t entries = 0;  ///< of this tensor
  Bytes item = 0;             ///< bytes of an entry
};

class Optimizer {
 public:
  /// States are zero: the masters of bf16 weights are the weights themselves. Those of fp16 must be set. Throws
  /// Error(bad_input) for a tensor without elements, Error(does_not_fit) and others as storage::Path.
  Optimizer(std::vector<OptimizerTensor> tensors, OptimizerSettings settings);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  struct Update {
    std::size_t tensor = 0;  ///< rising
    std::byte* weight = nullptr;
    const std::byte* grad = nullptr;
    optim::Step step;  ///< the seed is that of the settings
  };
  /// All of them; when it returns weights and states are new. After an error some tensors are updated, others not.
  void step(std::span<const Update> updates);

  /// The masters become the values of the weights, which are `weight` and on.
  void set_master(std::size_t tensor, const std::byte* weight);
  [[nodiscard]] std::vector<StateArray> arrays(std::size_t tensor) const;
  /// All arrays of a tensor, in the order of arrays(), each of entries * item bytes.
  void fetch(std::size_t tensor, std::span<const std::span<std::byte>> arrays);
  void store(std::size_t tensor, std::span<const std::span<const std::byte>> arrays);

  [[nodiscard]] const optim::Descriptor& optimizer() const noexcept;
  [[nodiscard]] Bytes state_bytes() const noexcept;  ///< of all tensors, wherever they lie
  [[nodiscard]] std::vector<std::string> notices() const;

 private:
  class Impl;
  sys::OfProcess<Impl> impl_;
};

}  // namespace spillway
