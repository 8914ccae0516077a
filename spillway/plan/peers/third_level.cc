#include "spillway/plan/peers/third_level.h"

#include <algorithm>
#include <cmath>

namespace spillway::plan {
namespace {

constexpr double kStates = 12;  ///< bytes a parameter: fp32 weights and two moments
constexpr double kUpdateTraffic = 28;

/// What distinguishes the two.
struct Method {
  double read = 0, write = 0;  ///< bytes a parameter of the update
  double backward_write = 0;   ///< to the first drive
  double gradients_to_host = 2;
  double cached = 0;   ///< share of the subgroups
  unsigned every = 0;  ///< 0: all on the first drive
};

class Iteration {
 public:
  Iteration(const Hardware& hardware, const ThirdLevelWork& work, const Method& method)
      : hardware_(hardware), work_(work), method_(method) {}

  IterationTimes times() {
    const auto devices = static_cast<double>(hardware_.devices.size());
    const auto forward = 2 * work_.parameters * work_.tokens / devices / hardware_.devices.front().flops;
    return {.forward = forward, .backward = backward(), .update = update()};
  }

 private:
  [[nodiscard]] std::size_t groups() const {
    return std::max<std::size_t>(1, static_cast<std::size_t>(std::lround(work_.parameters / work_.subgroup)));
  }
  [[nodiscard]] double elements() const { return work_.parameters / static_cast<double>(groups()); }

  /// The devices work alike; one is played, with its part of what they share.
  double backward() {
    Flow flow;
    FlowMachine machine(flow, hardware_, hardware_.devices.size());
    const auto compute = flow.add_lane(), down = flow.add_lane(), write = flow.add_lane();
    const auto devices = static_cast<double>(hardware_.devices.size());
    for (std::size_t g = 0; g < groups(); ++g) {
      const auto visit =
          flow.add({.work = 6 * elements() * work_.tokens / devices, .uses = machine.compute(0), .lane = compute});
      const auto moved = flow.add({.work = method_.gradients_to_host * elements() / devices,
                                   .uses = machine.from_device(0, all_at(0, hardware_.nodes.size())),
                                   .lane = down,
                                   .needs = {visit}});
      if (method_.backward_write == 0) continue;
      flow.add({.work = method_.backward_write * elements(),
                .uses = machine.write(all_at(0, hardware_.drives.size())),
                .lane = write,
                .needs = {moved}});
    }
    return flow.play().seconds;
  }

  double update() {
    Flow flow;
    FlowMachine machine(flow, hardware_, 0);
    const auto cores = flow.add_lane();
    std::vector<std::uint32_t> reads, writes;
    for (std::size_t d = 0; d < hardware_.drives.size(); ++d) {
      reads.push_back(flow.add_lane());
      writes.push_back(flow.add_lane());
    }
    const auto node = all_at(0, hardware_.nodes.size());
    const auto cached = static_cast<std::size_t>(std::lround(method_.cached * static_cast<double>(groups())));
    std::vector<std::uint32_t> written(hardware_.drives.size(), kNoLane), before = written;
    for (std::size_t g = 0; g < groups(); ++g) {
      const std::size_t drive = method_.every > 0 && g % method_.every == method_.every - 1 ? 1 : 0;
      const auto place = all_at(drive, hardware_.drives.size());
      FlowTask task{.work = kUpdateTraffic * elements(), .uses = machine.update(node), .lane = cores, .deadline = g};
      if (g >= cached) {  // the head of this pass is the tail of the last one
        FlowTask read{
            .work = method_.read * elements(), .uses = machine.read(place), .lane = reads[drive], .deadline = g};
        // Two buffers a drive: the one read into was written two subgroups before.
        if (before[drive] != kNoLane) read.needs = {before[drive]};
        task.needs = {flow.add(read)};
      }
      const auto done = flow.add(task);
      if (g + cached >= groups()) continue;  // its tail stays for the next
      before[drive] = written[drive];
      written[drive] = flow.add({.work = method_.write * elements(),
                                 .uses = machine.write(place),
                                 .lane = writes[drive],
                                 .deadline = g,
                                 .needs = {done}});
    }
    return flow.play().seconds;
  }

  const Hardware& hardware_;
  const ThirdLevelWork& work_;
  const Method method_;
};

}  // namespace

IterationTimes zero3_iteration(const Hardware& hardware, const ThirdLevelWork& work) {
  return Iteration(hardware, work, {.read = 16, .write = 12, .backward_write = 4}).times();
}

IterationTimes mlp_offload_iteration(const Hardware& hardware, const ThirdLevelWork& work, double cached,
                                     unsigned every) {
  const auto share = std::min(1.0, cached / (kStates * work.parameters));
  return Iteration(hardware, work, {.read = 12, .write = 12, .cached = share, .every = every}).times();
}

}  // namespace spillway::plan
