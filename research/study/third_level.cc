#include "research/study/third_level.h"

#include <algorithm>

namespace spillway::study {
namespace {

constexpr double kThirdTraffic = 28;
constexpr double kHalf = 2, kSingle = 4;         ///< bytes of a number
constexpr double kLeastWritten = 2 * (1 << 20);  ///< bytes of a gradient; smaller ones stay in memory
constexpr unsigned kStates = 3;                  ///< buffers of a subgroup: weights and two moments

/// Differences of the two.
struct Method {
  double read = 0, write = 0;  ///< bytes a parameter of the update
  bool gradients_written = false;
  unsigned every = 0;      ///< 0: all on the first drive
  std::size_t cached = 0;  ///< subgroups of each drive
};

/// Elements of the tensors on one device, in the order of the model.
std::vector<double> tensors_of(const DecoderShape& shape, double devices) {
  std::vector<double> out;
  const auto add = [&](std::uint64_t rows, std::uint64_t columns) {
    out.push_back(static_cast<double>(rows * columns) / devices);
  };
  add(shape.vocabulary, shape.hidden);
  for (std::uint64_t layer = 0; layer < shape.layers; ++layer) {
    add(1, shape.hidden);
    add(shape.query + 2 * shape.key, shape.hidden);
    add(shape.hidden, shape.query);
    add(1, shape.hidden);
    add(2 * shape.feed_forward, shape.hidden);
    add(shape.hidden, shape.feed_forward);
  }
  add(1, shape.hidden);
  add(shape.vocabulary, shape.hidden);
  return out;
}

class Iteration {
 public:
  Iteration(const Hardware& hardware, const ThirdLevelWork& work, const Method& method)
      : hardware_(hardware), work_(work), method_(method), machine_(flow_, hardware, hardware.devices.size()) {
    for (auto* lane : {&compute_, &cores_}) *lane = flow_.add_lane();
    for (std::size_t d = 0; d < hardware_.drives.size(); ++d) {
      paths_.push_back({.read = flow_.add_lane(), .write = flow_.add_lane()});
    }
  }

  IterationTimes times() {
    const auto parameters = static_cast<double>(work_.shape.parameters());
    const auto forward = 2 * parameters * work_.tokens / devices() / hardware_.devices.front().flops;
    backward();
    update();
    const auto played = flow_.play();
    const auto end = played.tasks[last_pass_].end;
    return {.forward = forward + layers() * work_.layer_second,
            .backward = end,
            .update = played.seconds - end,
            .first_wait = first_read_ == kNoLane ? 0 : played.tasks[first_read_].end - end};
  }

 private:
  struct Path {
    std::uint32_t read = 0, write = 0;                  ///< lanes
    std::uint32_t written = kNoLane, before = kNoLane;  ///< the last write, and the one before it
    std::size_t begun = 0, groups = 0;
  };

  [[nodiscard]] double devices() const { return static_cast<double>(hardware_.devices.size()); }
  [[nodiscard]] double layers() const { return static_cast<double>(work_.shape.layers); }
  [[nodiscard]] Shares node() const { return all_at(0, hardware_.nodes.size()); }
  [[nodiscard]] Shares drive(std::size_t place) const { return all_at(place, hardware_.drives.size()); }
  /// Subgroups by path as in the released runs: the first, fourth, ... on the second.
  [[nodiscard]] std::size_t place_of(std::size_t group) const {
    return method_.every > 0 && group % method_.every == 0 ? 1 : 0;
  }

  /// The devices work alike: one is played, and what it writes counts for all. Its gradients cross the link in the
  /// stream of its operations.
  void backward() {
    const auto tensors = tensors_of(work_.shape, devices());
    const auto buffers = gradient_buffers(work_, devices());
    double filled = 0;
    std::size_t buffer = 0;
    for (auto it = tensors.rbegin(); it != tensors.rend(); ++it) {
      pass(*it, work_.layer_second * layers() / static_cast<double>(tensors.size()));
      if (!method_.gradients_written || kSingle * *it < kLeastWritten) continue;
      if (filled == buffers[buffer]) {
        write_gradients(filled);
        if (++buffer % work_.buffers == 0) pass_needs_ = paths_.front().written;
        filled = 0;
      }
      filled += *it;
    }
    if (filled > 0) write_gradients(filled);
  }

  void pass(double elements, double seconds) {
    flow_pass({.work = seconds, .lane = compute_});
    flow_pass({.work = 6 * elements * work_.tokens, .uses = machine_.compute(0), .lane = compute_});
    flow_pass({.work = kHalf * elements, .uses = machine_.from_device(0, node()), .lane = compute_});
  }
  void flow_pass(FlowTask task) {
    task.deadline = order_++;
    if (pass_needs_ != kNoLane) task.needs = {pass_needs_};
    last_pass_ = flow_.add(task);
  }
  void write_gradients(double elements) {
    auto& path = paths_.front();
    path.written = flow_.add({.work = kSingle * elements * devices(),
                              .uses = machine_.write(drive(0)),
                              .lane = path.write,
                              .deadline = order_++,
                              .needs = {last_pass_}});
  }

  void update() {
    const auto groups = subgroups_of(work_, devices());
    std::vector<std::uint32_t> first = {last_pass_};  // and what is left of the gradients
    if (paths_.front().written != kNoLane) first.push_back(paths_.front().written);
    const auto begin = flow_.add({.work = 0, .needs = first});
    for (std::size_t g = 0; g < groups.size(); ++g) ++paths_[place_of(g)].groups;
    for (auto& path : paths_) path.written = path.before = begin;
    for (std::size_t g = 0; g < groups.size(); ++g) subgroup(place_of(g), groups[g] * devices(), begin);
  }

  void subgroup(std::size_t place, double elements, std::uint32_t begin) {
    auto& path = paths_[place];
    const auto turn = path.begun++;
    FlowTask task{
        .work = kThirdTraffic * elements, .uses = machine_.update(node()), .lane = cores_, .deadline = order_++};
    task.needs = {begin};
    if (turn >= method_.cached) {  // the head of this pass is the tail of the last one
      // Two buffers a path: the one read into was written two subgroups before.
      const auto read = flow_.add({.work = method_.read * elements,
                                   .uses = machine_.read(drive(place)),
                                   .lane = path.read,
                                   .deadline = order_++,
                                   .needs = {path.before}});
      if (first_read_ == kNoLane) first_read_ = read;
      task.needs = {read};
    }
    const auto done = flow_.add(task);
    if (turn + method_.cached >= path.groups) return;  // its tail stays for the next
    path.before = path.written;
    path.written = flow_.add({.work = method_.write * elements,
                              .uses = machine_.write(drive(place)),
                              .lane = path.write,
                              .deadline = order_++,
                              .needs = {done}});
  }

  const Hardware& hardware_;
  const ThirdLevelWork& work_;
  const Method method_;
  Flow flow_;
  FlowMachine machine_;
  std::vector<Path> paths_;
  std::uint32_t compute_ = 0, cores_ = 0, last_pass_ = kNoLane, pass_needs_ = kNoLane, first_read_ = kNoLane;
  std::uint64_t order_ = 0;
};

}  // namespace

std::vector<double> subgroups_of(const ThirdLevelWork& work, double devices) {
  std::vector<double> out;
  double filled = 0;
  for (const auto elements : tensors_of(work.shape, devices)) {
    filled += elements;
    if (filled < work.subgroup) continue;
    out.push_back(filled);
    filled = 0;
  }
  if (filled > 0) out.push_back(filled);
  return out;
}

std::vector<double> gradient_buffers(const ThirdLevelWork& work, double devices) {
  const auto room = std::ranges::max(subgroups_of(work, devices));
  const auto tensors = tensors_of(work.shape, devices);
  std::vector<double> out = {0};
  for (auto it = tensors.rbegin(); it != tensors.rend(); ++it) {
    if (kSingle * *it < kLeastWritten) continue;
    if (out.back() + *it > room) out.push_back(0);
    out.back() += *it;
  }
  return out;
}

IterationTimes zero3_iteration(const Hardware& hardware, const ThirdLevelWork& work) {
  return Iteration(hardware, work, {.read = 16, .write = 12, .gradients_written = true}).times();
}

IterationTimes mlp_offload_iteration(const Hardware& hardware, const ThirdLevelWork& work, unsigned every) {
  return Iteration(hardware, work, {.read = 12, .write = 12, .every = every, .cached = work.buffers / 2 / kStates})
      .times();
}

}  // namespace spillway::study
