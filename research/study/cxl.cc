#include "research/study/cxl.h"

#include <algorithm>
#include <array>

#include "spillway/base/error.h"

namespace spillway::study {
namespace {

/// fp32 moments, gradients and weights; bf16 weights; activations; bf16 gradients.
enum Class : std::size_t { moment, variance, gradient32, weight32, weight, activation, gradient, kClasses };

using ByClass = std::array<double, kClasses>;

ByClass class_bytes(const CxlWork& work) {
  const auto n = work.parameters;
  const auto border = work.batch * work.sequence * static_cast<double>(work.layers * work.hidden) * 2;
  return {4 * n, 4 * n, 4 * n, 4 * n, 2 * n, border, 2 * n};
}

/// Bytes that an update moves of each class, per element.
constexpr ByClass kUpdateTraffic{8, 8, 4, 8, 0, 0, 0};

/// Bytes of each class by node.
class CxlPlacer {
 public:
  CxlPlacer(const Hardware& hardware, const CxlWork& work, CxlPlacement placement) : bytes_(class_bytes(work)) {
    for (const auto& node : hardware.nodes) {
      free_.push_back(static_cast<double>(node.capacity));
      dram_.push_back(!node.cxl);
    }
    switch (placement) {
      case CxlPlacement::dram_only:
        shares_.fill(first_dram());
        break;
      case CxlPlacement::interleaved:
        shares_.fill(Shares(free_.size(), 1.0 / static_cast<double>(free_.size())));
        break;
      case CxlPlacement::class_wise:
        for (const Class it : {moment, variance, gradient32, weight32, weight, activation, gradient}) {
          shares_[it] = latency_first(bytes_[it]);
        }
    }
  }

  [[nodiscard]] const Shares& operator[](Class it) const { return shares_[it]; }

 private:
  [[nodiscard]] Shares first_dram() const {
    return all_at(static_cast<std::size_t>(std::ranges::find(dram_, true) - dram_.begin()), dram_.size());
  }

  /// The released allocator: all in DRAM where it fits; evenly over DRAM and every card where DRAM has room for a part;
  /// else on the cards.
  Shares latency_first(double bytes) {
    const auto dram = static_cast<std::size_t>(std::ranges::find(dram_, true) - dram_.begin());
    if (free_[dram] >= bytes) return fill(bytes, true);
    const auto even = bytes / static_cast<double>(free_.size());
    const auto part = std::clamp(free_[dram], 0.0, even);
    free_[dram] -= part;
    auto shares = fill(bytes - part, false);
    for (auto& it : shares) it *= (bytes - part) / std::max(1.0, bytes);
    shares[dram] += part / std::max(1.0, bytes);
    return shares;
  }

  /// The kind asked for first, the rest over the other nodes evenly by what is free.
  Shares fill(double bytes, bool dram) {
    Shares taken(free_.size(), 0);
    double left = bytes;
    for (const bool kind : {dram, !dram}) {
      std::vector<double> room(free_.size(), 0);
      double sum = 0;
      for (std::size_t n = 0; n < free_.size(); ++n) sum += room[n] = dram_[n] == kind ? free_[n] : 0;
      const auto part = std::min(left, sum);
      for (std::size_t n = 0; n < free_.size() && sum > 0; ++n) {
        taken[n] += part * room[n] / sum;
        free_[n] -= part * room[n] / sum;
      }
      left -= part;
    }
    if (left > 1) throw Error(ErrorCode::does_not_fit, "the nodes together do not hold this step");
    for (auto& it : taken) it /= std::max(1.0, bytes);
    return taken;
  }

  const ByClass bytes_;
  std::vector<double> free_;
  std::vector<bool> dram_;
  std::array<Shares, kClasses> shares_;
};

/// A transfer per layer and direction beside compute, one after the other on each stream.
class CxlStep {
 public:
  CxlStep(const Hardware& hardware, const CxlWork& work, CxlPlacement placement)
      : work_(work), places_(hardware, work, placement), machine_(flow_, hardware, 1) {
    compute_ = flow_.add_lane();
    up_ = flow_.add_lane();
    down_ = flow_.add_lane();
  }

  double seconds() {
    const auto layers = work_.layers;
    const auto tokens = work_.batch * work_.sequence;
    const auto linear = 2 * work_.parameters / static_cast<double>(layers) * tokens;
    const auto attention = 2 * tokens * work_.sequence * static_cast<double>(work_.hidden);  // causal: half of 4
    const auto weights = 2 * work_.parameters / static_cast<double>(layers);
    const auto border = tokens * static_cast<double>(work_.hidden) * 2;
    std::vector<std::uint32_t> last;
    for (std::uint64_t pass = 0; pass < 2 * layers; ++pass) {
      const bool back = pass >= layers;
      auto needs = last;
      needs.push_back(transfer(up_, machine_.to_device(0, places_[weight]), weights));
      if (back) needs.push_back(transfer(up_, machine_.to_device(0, places_[activation]), border));
      last = {flow_.add({.work = (linear + attention) * (back ? 3 : 1),
                         .uses = machine_.compute(0),
                         .lane = compute_,
                         .needs = needs})};
      const auto to = machine_.from_device(0, places_[back ? gradient : activation]);
      transfer(down_, to, back ? weights : border, last);
    }
    const auto backward = flow_.play().seconds;
    return backward + update();
  }

 private:
  std::uint32_t transfer(std::uint32_t lane, std::vector<FlowUse> uses, double bytes,
                         std::vector<std::uint32_t> needs = {}) {
    return flow_.add({.work = bytes, .uses = std::move(uses), .lane = lane, .needs = std::move(needs)});
  }

  /// The nodes work at once on what they hold of each element.
  double update() {
    Flow flow;
    const FlowMachine machine(flow, machine_.hardware(), 0);
    std::vector<double> bytes(machine_.hardware().nodes.size(), 0);
    double sum = 0;
    for (std::size_t c = 0; c < kClasses; ++c) {
      for (std::size_t n = 0; n < bytes.size(); ++n) bytes[n] += kUpdateTraffic[c] * places_[static_cast<Class>(c)][n];
      sum += kUpdateTraffic[c];
    }
    flow.add({.work = work_.parameters * sum, .uses = machine.update(in_proportion(bytes))});
    return flow.play().seconds;
  }

  const CxlWork& work_;
  CxlPlacer places_;
  Flow flow_;
  FlowMachine machine_;
  std::uint32_t compute_ = 0, up_ = 0, down_ = 0;
};

}  // namespace

double transfer_rate(const Hardware& hardware, std::size_t devices, bool from_device, const Shares& nodes,
                     double bytes) {
  Flow flow;
  const FlowMachine machine(flow, hardware, devices);
  for (std::size_t d = 0; d < devices; ++d) {
    flow.add({.work = bytes, .uses = from_device ? machine.from_device(d, nodes) : machine.to_device(d, nodes)});
  }
  return bytes / flow.play().seconds;
}

double update_seconds(const Hardware& hardware, double elements, const Shares& nodes, double bytes_per_element) {
  Flow flow;
  const FlowMachine machine(flow, hardware, 0);
  flow.add({.work = elements * bytes_per_element, .uses = machine.update(nodes)});
  return flow.play().seconds;
}

double cxl_step_seconds(const Hardware& hardware, const CxlWork& work, CxlPlacement placement) {
  return CxlStep(hardware, work, placement).seconds();
}

}  // namespace spillway::study
