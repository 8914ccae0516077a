// Rates of a compute device by class of operation. The time of a pass follows from them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "spillway/machine/profile.h"
#include "spillway/state/rule.h"

namespace spillway::plan {

/// A matrix product of a linear layer whose weight is [outer, inner].
enum class Product : std::uint8_t { forward, input, weight };

class ComputeRates {
 public:
  /// The rates of the CPUs, which multiply in `type`: Profile::compute of that type, else Profile::layers, else
  /// Profile::compute_flops_per_second for everything. Throws Error(bad_input) when the profile has none of them.
  static ComputeRates read_cpus(const machine::Profile& profile, state::ComputeType type);
  /// The rates of a GPU: every product runs at one rate, all of attention at another one. The GPU computes behind the
  /// host, which asks for one operation after the other.
  static ComputeRates read_gpu(const machine::GpuProfile& gpu);

  /// Operations per second: the rates of the nearest shapes that were measured, weighted by how near they are. Shapes
  /// whose outer size is a multiple of 16, or is not, are nearer to their like.
  [[nodiscard]] double product(Product product, double tokens, double inner, double outer) const;
  /// Operations per second over rows of so many tokens, of those that a causal mask leaves. `head`: channels of one; 0:
  /// unknown.
  [[nodiscard]] double attention(double tokens, bool backward, double head = 0) const;
  /// Seconds of operations on each element that read and write so many bytes.
  [[nodiscard]] double elementwise_seconds(double bytes) const noexcept {
    return elementwise_ > 0 ? bytes / elementwise_ : 0;
  }
  /// True if the operations of a trace have rates of their own, beside products.
  [[nodiscard]] bool knows_operations() const noexcept { return !operations_.empty() || (behind_ && elementwise_ > 0); }
  /// True if operations run behind the calls that ask for them; false if each call waits for its operation.
  [[nodiscard]] bool runs_behind() const noexcept { return behind_; }
  /// Seconds of a call of this operation (machine::OperationRate): between the rates of the sizes that were measured,
  /// at that of the nearest beyond them; of an operation that was not measured, as operations on each element.
  [[nodiscard]] double operation_seconds(const std::string& operation, bool strided, double bytes) const;
  /// Seconds that a call takes besides.
  [[nodiscard]] double call_seconds() const noexcept { return call_; }
  /// Bytes in memory once layers have computed, beside tensors.
  [[nodiscard]] Bytes libraries_bytes() const noexcept { return libraries_; }

 private:
  using OperationKey = std::pair<std::string, bool>;
  std::vector<machine::ProductRate> products_;  ///< at least one
  std::vector<machine::AttentionRate> attention_;
  double elementwise_ = 0;
  std::map<OperationKey, std::map<double, double>> operations_;  ///< rates by bytes
  double call_ = 0;
  bool behind_ = false;
  Bytes libraries_ = 0;
};

}  // namespace spillway::plan
