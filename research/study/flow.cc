#include "research/study/flow.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::study {
namespace {

constexpr double kNoEnd = std::numeric_limits<double>::infinity();
constexpr double kDone = 1e-9;  ///< of a task's work: less than this is left over by rounding

class Player {
 public:
  explicit Player(const Flow& flow) : flow_(flow), lanes_(flow.lanes()), free_(flow.lanes(), true) {
    check();
    const auto tasks = flow.tasks().size();
    next_.resize(tasks);
    waiting_.resize(tasks);
    result_.tasks.resize(tasks);
    result_.used.assign(flow.resources().size(), 0);
    for (std::uint32_t t = 0; t < tasks; ++t) {
      for (const auto need : flow.tasks()[t].needs) next_[need].push_back(t);
      waiting_[t] = flow.tasks()[t].needs.size();
    }
  }

  FlowResult play() {
    for (std::uint32_t t = 0; t < waiting_.size(); ++t) {
      if (waiting_[t] == 0) make_ready(t);
    }
    while (start()) advance();
    if (ended_ != waiting_.size()) {
      throw Error(ErrorCode::internal, text("of ", waiting_.size(), " tasks ", waiting_.size() - ended_,
                                            " wait for each other in a circle"));
    }
    result_.seconds = now_;
    return std::move(result_);
  }

 private:
  struct Active {
    std::uint32_t task = 0;
    double left = 0;
    double alone = 1;  ///< rate without the others
    double rate = 0;
    bool settled = false;
  };
  using Ready = std::pair<std::uint64_t, std::uint32_t>;  ///< deadline, task

  void check() const {
    for (const auto& resource : flow_.resources()) {
      if (!(resource.rate > 0) || resource.shared < 0) {
        throw Error(ErrorCode::bad_input, text("the resource ", resource.name, " has no rate"));
      }
    }
    for (const auto& task : flow_.tasks()) {
      const bool use = std::ranges::any_of(
          task.uses, [&](const auto& it) { return it.resource >= flow_.resources().size() || !(it.amount >= 0); });
      const bool need = std::ranges::any_of(task.needs, [&](auto it) { return it >= flow_.tasks().size(); });
      const bool lane = task.lane != kNoLane && task.lane >= flow_.lanes();
      if (use || need || lane || !(task.work >= 0)) {
        throw Error(ErrorCode::bad_input, "a task names a resource, task or lane that is not there");
      }
    }
  }

  void make_ready(std::uint32_t t) {
    const auto& task = flow_.tasks()[t];
    if (task.lane == kNoLane) {
      begin(t);
    } else {
      lanes_[task.lane].push({task.deadline, t});
    }
  }

  void begin(std::uint32_t t) {
    result_.tasks[t].start = now_;
    active_.push_back({.task = t, .left = flow_.tasks()[t].work});
  }

  bool start() {
    for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
      if (!free_[lane] || lanes_[lane].empty()) continue;
      free_[lane] = false;
      begin(lanes_[lane].top().second);
      lanes_[lane].pop();
    }
    return !active_.empty();
  }

  void set_rates() {
    const auto& resources = flow_.resources();
    std::vector<std::uint8_t> directions(resources.size(), 0);
    for (const auto& active : active_) {
      for (const auto& use : flow_.tasks()[active.task].uses) directions[use.resource] |= use.back ? 2 : 1;
    }
    room_.resize(resources.size());
    for (std::size_t r = 0; r < resources.size(); ++r) {
      room_[r] = directions[r] == 3 && resources[r].shared > 0 ? resources[r].shared : resources[r].rate;
    }
    for (auto& active : active_) {
      active.settled = false;
      active.alone = flow_.tasks()[active.task].uses.empty() ? 1 : kNoEnd;
      for (const auto& use : flow_.tasks()[active.task].uses) {
        if (use.amount > 0) active.alone = std::min(active.alone, room_[use.resource] / use.amount);
      }
      if (active.alone == kNoEnd) active.alone = 1;
    }
    for (auto left = active_.size(); left > 0;) left -= settle();
  }

  /// Raises the level until something is full; who uses that keeps the rate. Returns how many were settled.
  std::size_t settle() {
    std::vector<double> load(room_.size(), 0);
    for (const auto& active : active_) {
      if (active.settled) continue;
      for (const auto& use : flow_.tasks()[active.task].uses) load[use.resource] += active.alone * use.amount;
    }
    double level = 1;
    std::uint32_t full = kNoLane;
    for (std::uint32_t r = 0; r < room_.size(); ++r) {
      if (load[r] > 0 && room_[r] / load[r] < level) {
        level = std::max(0.0, room_[r] / load[r]);
        full = r;
      }
    }
    std::size_t settled = 0;
    for (auto& active : active_) {
      const auto& uses = flow_.tasks()[active.task].uses;
      const auto takes = [&](const auto& use) { return use.resource == full && use.amount > 0; };
      if (active.settled || (full != kNoLane && std::ranges::none_of(uses, takes))) continue;
      active.settled = true;
      active.rate = level * active.alone;
      for (const auto& use : uses) room_[use.resource] -= active.rate * use.amount;
      ++settled;
    }
    return settled;
  }

  void advance() {
    set_rates();
    double wait = kNoEnd;
    for (const auto& active : active_) wait = std::min(wait, active.left > 0 ? active.left / active.rate : 0);
    now_ += wait;
    std::vector<std::uint32_t> ended;
    std::erase_if(active_, [&](Active& active) {
      const auto& task = flow_.tasks()[active.task];
      active.left -= wait * active.rate;
      if (active.left > kDone * task.work) return false;
      ended.push_back(active.task);
      return true;
    });
    for (const auto t : ended) end(t);
  }

  void end(std::uint32_t t) {
    const auto& task = flow_.tasks()[t];
    result_.tasks[t].end = now_;
    ++ended_;
    for (const auto& use : task.uses) result_.used[use.resource] += task.work * use.amount;
    if (task.lane != kNoLane) free_[task.lane] = true;
    for (const auto other : next_[t]) {
      if (--waiting_[other] == 0) make_ready(other);
    }
  }

  const Flow& flow_;
  std::vector<std::vector<std::uint32_t>> next_;
  std::vector<std::size_t> waiting_;
  std::vector<std::priority_queue<Ready, std::vector<Ready>, std::greater<>>> lanes_;
  std::vector<bool> free_;
  std::vector<Active> active_;
  std::vector<double> room_;
  std::size_t ended_ = 0;
  double now_ = 0;
  FlowResult result_;
};

}  // namespace

std::uint32_t Flow::add_resource(FlowResource resource) {
  resources_.push_back(std::move(resource));
  return static_cast<std::uint32_t>(resources_.size() - 1);
}

std::uint32_t Flow::add(FlowTask task) {
  tasks_.push_back(std::move(task));
  return static_cast<std::uint32_t>(tasks_.size() - 1);
}

std::uint32_t Flow::add(double work, std::vector<FlowUse> uses, std::uint32_t lane, FlowTurn turn,
                        std::vector<std::uint32_t> needs) {
  std::erase(needs, kNoLane);
  return add({.work = work,
              .uses = std::move(uses),
              .lane = lane,
              .deadline = turn.step * 1'000'000 + turn.position,
              .needs = std::move(needs)});
}

FlowResult Flow::play() const {
  return Player(*this).play();
}

}  // namespace spillway::study
