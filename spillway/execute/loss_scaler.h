// The factor that keeps gradients within fp16's range: the loss is multiplied by it before backward, the gradient
// divided by it in the update.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spillway::execute {

/// Doubles after kGrowAfter finite steps in a row, halves when a gradient is not finite: the defaults of
/// torch.amp.GradScaler, and powers of two, so that scaling rounds nothing.
class LossScaler {
 public:
  static constexpr double kFirst = 65536, kLeast = 1, kMost = 16777216;
  static constexpr std::int64_t kGrowAfter = 2000;

  /// State from which a resumed run goes on.
  struct State {
    double scale = kFirst;
    std::int64_t good = 0;  ///< finite steps since the scale changed
    friend bool operator==(const State&, const State&) = default;
  };

  /// Without `scales` the factor is 1 forever.
  explicit LossScaler(bool scales) : state_{scales ? kFirst : 1, 0}, scales_(scales) {}

  [[nodiscard]] double scale() const noexcept { return state_.scale; }
  [[nodiscard]] const State& state() const noexcept { return state_; }
  /// Takes up the state of an earlier scaler; does nothing where nothing is scaled.
  void restore(const State& state) noexcept {
    if (scales_) state_ = state;
  }

  /// A step has ended.
  void ended(bool finite) noexcept {
    if (!scales_) return;
    if (!finite) {
      state_ = {std::max(state_.scale / 2, kLeast), 0};
    } else if (++state_.good == kGrowAfter) {
      state_ = {std::min(state_.scale * 2, kMost), 0};
    }
  }

 private:
  State state_;
  bool scales_;
};

}  // namespace spillway::execute
