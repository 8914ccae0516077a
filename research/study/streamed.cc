#include "research/study/streamed.h"

namespace spillway::study {
namespace {

constexpr double kWeights = 2, kGradients = 2;  ///< bytes a parameter
constexpr double kStreamedStates = 12;          ///< fp32 weights and moments
constexpr double kWritten = kStreamedStates + kWeights;
constexpr double kStreamedTraffic = 28;

/// One step of any of the three, as tasks.
class StreamedStep {
 public:
  StreamedStep(const Hardware& hardware, const StreamedWork& work)
      : hardware_(hardware), work_(work), machine_(flow_, hardware, 1), per_layer_(work.parameters / layers()) {
    for (auto* lane : {&compute_, &up_, &down_, &read_, &write_, &update_}) *lane = flow_.add_lane();
  }

  /// A layer's weights from the drives to the device, each its part over its own link; not before `after`.
  std::uint32_t weights(std::uint32_t after = kNoLane) {
    auto uses = machine_.read(drives());
    for (auto link : machine_.to_device(0, node())) {
      link.amount /= devices();
      uses.push_back(link);
    }
    return add(kWeights * per_layer_, std::move(uses), read_, after);
  }

  /// One layer, one pass: `times` the operations of a forward pass, over so many micro-batches.
  std::uint32_t pass(std::uint32_t weights, double times, double micro_batches) {
    FlowTask task{.work = 2 * per_layer_ * work_.tokens * micro_batches * times,
                  .uses = machine_.compute(0),
                  .lane = compute_,
                  .needs = {weights}};
    return flow_.add(task);
  }

  std::uint32_t gradient_down(std::uint32_t after, double bytes) {
    return add(bytes * per_layer_ / devices(), machine_.from_device(0, node()), down_, after);
  }

  /// States read, updated, written with the new weights: all of a layer.
  std::uint32_t update(std::uint32_t after) {
    const auto read = add(kStreamedStates * per_layer_, machine_.read(drives()), read_, after);
    const auto done = add(kStreamedTraffic * per_layer_, machine_.update(node()), update_, read);
    return add(kWritten * per_layer_, machine_.write(drives()), write_, done);
  }

  /// Border activations of a layer, all micro-batches, between device and host.
  void borders(std::uint32_t pass, bool back, double micro_batches) {
    if (work_.border == 0) return;
    const auto bytes = work_.border * micro_batches;
    if (back) {
      add(bytes, machine_.to_device(0, node()), up_, kNoLane);
    } else {
      add(bytes, machine_.from_device(0, node()), down_, pass);
    }
  }

  std::uint32_t wait_for(std::vector<std::uint32_t> needs) { return flow_.add({.work = 0, .needs = std::move(needs)}); }
  double seconds() { return flow_.play().seconds; }
  [[nodiscard]] double layers() const { return static_cast<double>(work_.layers); }

 private:
  std::uint32_t add(double bytes, std::vector<FlowUse> uses, std::uint32_t lane, std::uint32_t after) {
    FlowTask task{.work = bytes, .uses = std::move(uses), .lane = lane};
    if (after != kNoLane) task.needs = {after};
    return flow_.add(std::move(task));
  }
  [[nodiscard]] double devices() const { return static_cast<double>(hardware_.devices.size()); }
  [[nodiscard]] Shares node() const { return all_at(0, hardware_.nodes.size()); }
  [[nodiscard]] Shares drives() const {
    std::vector<double> rates;
    rates.reserve(hardware_.drives.size());
    for (const auto& drive : hardware_.drives) rates.push_back(mixed_rate(drive));
    return in_proportion(rates);
  }

  const Hardware& hardware_;
  const StreamedWork& work_;
  Flow flow_;
  FlowMachine machine_;
  const double per_layer_;
  std::uint32_t compute_ = 0, up_ = 0, down_ = 0, read_ = 0, write_ = 0, update_ = 0;
};

}  // namespace

double zero_infinity_seconds(const Hardware& hardware, const StreamedWork& work) {
  StreamedStep step(hardware, work);
  std::uint32_t last = kNoLane, gradients = kNoLane;
  for (std::uint64_t m = 0; m < work.micro_batches; ++m) {
    for (const double times : {1.0, 3.0}) {
      for (std::uint64_t l = 0; l < work.layers; ++l) {
        last = step.pass(step.weights(last), times, 1);
        step.borders(last, times > 1, 1);
        if (times > 1) gradients = step.gradient_down(last, kGradients);
      }
    }
  }
  const auto end = step.wait_for({last, gradients});
  for (std::uint64_t l = 0; l < work.layers; ++l) step.update(end);
  return step.seconds();
}

double greedy_snake_seconds(const Hardware& hardware, const StreamedWork& work, double overlapped) {
  // A steady step: what is left of the update before runs beside forward, the rest beside backward.
  StreamedStep step(hardware, work);
  const auto micro_batches = static_cast<double>(work.micro_batches);
  const auto late = static_cast<std::uint64_t>(overlapped * step.layers());
  for (std::uint64_t l = 0; l < work.layers; ++l) {
    const auto updated = l < late ? step.update(kNoLane) : kNoLane;
    const auto pass = step.pass(step.weights(updated), 1, micro_batches);
    step.borders(pass, false, micro_batches);
  }
  for (std::uint64_t l = work.layers; l-- > 0;) {
    const auto pass = step.pass(step.weights(), 3, micro_batches);
    step.borders(pass, true, micro_batches);
    const auto down = step.gradient_down(pass, kGradients);
    if (l >= late) step.update(down);
  }
  return step.seconds();
}

double lohan_seconds(const Hardware& hardware, const StreamedWork& work) {
  return greedy_snake_seconds(hardware, work, 0);
}

}  // namespace spillway::study
