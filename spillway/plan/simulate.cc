#include "spillway/plan/simulate.h"

#include <algorithm>
#include <array>
#include <limits>
#include <queue>

namespace spillway::plan {
namespace {

constexpr std::size_t kLanes = 4;
constexpr auto kCompute = static_cast<std::size_t>(Lane::compute), kUpdate = static_cast<std::size_t>(Lane::update);
/// An early update copies what it changes first: 24 bytes of traffic beside the 26 of an `exact` one.
constexpr double kEarlyWork = 2;
constexpr double kNever = std::numeric_limits<double>::infinity();

struct Ready {
  std::uint64_t deadline = 0;
  std::uint64_t node = 0;
  bool operator<(const Ready& other) const {
    return deadline != other.deadline ? deadline > other.deadline : node > other.node;
  }
};

/// One node per task and step; successors by template.
class Machine {
 public:
  Machine(const Schedule& schedule, const state::Layout& layout, const Rates& rates, unsigned steps)
      : schedule_(schedule), rates_(rates), storage_(rates.storage()), steps_(steps), tasks_(schedule.tasks.size()) {
    same_.resize(tasks_);
    next_.resize(tasks_);
    work_.resize(tasks_);
    for (Index t = 0; t < tasks_; ++t) {
      const auto& task = schedule.tasks[t];
      for (const auto& dependency : task.needs) (dependency.previous ? next_ : same_)[dependency.task].push_back(t);
      work_[t] = task.kind == TaskKind::visit ? visit_seconds(schedule, layout, rates, task.subject)
                 : schedule.settled_by_early(task)
                     ? 0
                     : static_cast<double>(task.bytes) * (task.phase == Phase::early ? kEarlyWork : 1);
    }
    if (rates.update_cores == 0) patient_ = patient_updates(schedule);
    waiting_.assign(tasks_ * steps, 0);
    times_.resize(tasks_ * steps);
  }

  void run() {
    for (unsigned step = 0; step < steps_; ++step) {
      for (Index t = 0; t < tasks_; ++t) {
        auto& count = waiting_[node(step, t)];
        for (const auto& dependency : schedule_.tasks[t].needs) count += !(dependency.previous && step == 0);
        count += step > 0 ? 1 : 0;  // no task of a step begins before the caller has ended the step before
      }
    }
    for (unsigned step = 0; step < steps_; ++step) {
      for (Index t = 0; t < tasks_; ++t) {
        if (waiting_[node(step, t)] == 0) make_ready(node(step, t));
      }
    }
    while (start_lanes()) advance();
  }

  [[nodiscard]] const std::vector<TaskTimes>& times() const { return times_; }
  [[nodiscard]] std::size_t node(unsigned step, Index task) const { return step * tasks_ + task; }

 private:
  struct Active {
    bool busy = false;
    std::size_t node = 0;
    double left = 0;
    double rate = 0;
  };

  void make_ready(std::size_t n) {
    const auto& task = schedule_.tasks[n % tasks_];
    const auto deadline = (n / tasks_) * schedule_.positions + task.deadline;
    const bool patient = !patient_.empty() && patient_[n % tasks_];
    (patient ? patient_ready_ : ready_[static_cast<std::size_t>(task.lane)]).push({deadline, n});
  }

  /// Of a node: nothing when it is not its turn.
  [[nodiscard]] double work(std::size_t n) const {
    const auto& task = schedule_.tasks[n % tasks_];
    return (n / tasks_) % task.every == task.turn ? work_[n % tasks_] : 0;
  }

  bool start_lanes() {
    bool any = false;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      auto& active = active_[lane];
      if (auto* ready = active.busy ? nullptr : next_of(lane)) {
        active = {true, ready->top().node, work(ready->top().node), 0};
        ready->pop();
        times_[active.node].start = now_;
      }
      any = any || active.busy;
    }
    return any;
  }

  /// What the lane does next: null when there is nothing. Updates that can wait run while compute waits.
  [[nodiscard]] std::priority_queue<Ready>* next_of(std::size_t lane) {
    auto& mine = ready_[lane];
    if (lane == kUpdate && !active_[kCompute].busy && !patient_ready_.empty() &&
        (mine.empty() || mine.top() < patient_ready_.top())) {
      return &patient_ready_;
    }
    return mine.empty() ? nullptr : &mine;
  }

  void set_rates() {
    auto& compute = active_[0];
    auto& update = active_[1];
    auto& read = active_[2];
    auto& write = active_[3];
    const double cores = std::max(1U, rates_.cores);
    const bool own = rates_.update_cores > 0;  // updates and the paths' threads take nothing of what compute has
    const double io = !own && (read.busy || write.busy) ? rates_.io_cores : 0;
    const double wanted = (compute.busy ? cores : 0) + (update.busy && !own ? 1 : 0) + io;
    const double share = wanted > cores ? cores / wanted : 1;
    compute.rate = share;
    // While compute waits, its cores update, too.
    const double hands = compute.busy ? 1 : std::max(1.0, cores - io);
    update.rate = (rates_.update > 0 ? rates_.update : 1e9) * (own ? rates_.update_cores : share * hands);
    const bool both = read.busy && write.busy;
    read.rate = both ? storage_.mixed / 2 : storage_.read;
    write.rate = both ? storage_.mixed / 2 : storage_.write;
  }

  void advance() {
    set_rates();
    double wait = kNever;
    for (auto& active : active_) {
      if (active.busy) wait = std::min(wait, active.rate > 0 ? active.left / active.rate : 0);
    }
    now_ += wait;
    for (auto& active : active_) {
      if (!active.busy) continue;
      active.left -= wait * active.rate;
      if (active.rate <= 0 || active.left <= 1e-9 * std::max(1.0, work_[active.node % tasks_])) finish(active);
    }
  }

  void finish(Active& active) {
    active.busy = false;
    times_[active.node].end = now_;
    const auto step = active.node / tasks_;
    const auto task = static_cast<Index>(active.node % tasks_);
    for (const auto t : same_[task]) release(step * tasks_ + t);
    if (step + 1 == steps_) return;
    for (const auto t : next_[task]) release((step + 1) * tasks_ + t);
    if (task != schedule_.visits.back().task) return;
    for (Index t = 0; t < tasks_; ++t) release((step + 1) * tasks_ + t);
  }

  void release(std::size_t n) {
    if (--waiting_[n] == 0) make_ready(n);
  }

  const Schedule& schedule_;
  const Rates& rates_;
  const PathRates storage_;
  unsigned steps_;
  std::size_t tasks_;
  std::vector<std::vector<Index>> same_, next_;
  std::vector<double> work_;
  std::vector<bool> patient_;  ///< by task; empty: updates have cores of their own
  std::vector<std::uint32_t> waiting_;
  std::vector<TaskTimes> times_;
  std::array<std::priority_queue<Ready>, kLanes> ready_;
  std::priority_queue<Ready> patient_ready_;
  std::array<Active, kLanes> active_{};
  double now_ = 0;
};

}  // namespace

double visit_seconds(const Schedule& schedule, const state::Layout& layout, const Rates& rates, Index visit) {
  const auto& it = schedule.visits[visit];
  double average = 0;
  Index layers = 0, last = kNone;
  for (Index b = 0; b < layout.blocks().size(); ++b) {
    if (layout.blocks()[b].role != state::BlockRole::layer) continue;
    average += static_cast<double>(layout.blocks()[b].elements);
    last = b;
    ++layers;
  }
  const bool tail = rates.tail_forward > 0 && it.block == last;
  if (rates.tail_forward > 0 && layers > 1) {
    average -= static_cast<double>(layout.blocks()[last].elements);
    --layers;
  }
  average /= std::max<Index>(1, layers);
  const auto size = static_cast<double>(layout.blocks()[it.block].elements);
  switch (it.kind) {
    case VisitKind::forward:
      return tail ? rates.tail_forward : rates.forward * size / average;
    case VisitKind::backward:
      return tail ? rates.tail_backward : rates.backward * size / average;
    case VisitKind::head_loss:
      return rates.head_loss;
    case VisitKind::head_gradient:
      return rates.head_gradient;
    case VisitKind::embedding:
    case VisitKind::embedding_backward:
      break;
  }
  return it.kind == VisitKind::embedding_backward ? rates.between : 0;
}

Simulation simulate(const Schedule& schedule, const Description&, const state::Layout& layout, const Rates& rates,
                    unsigned steps, const std::string& storage_name) {
  steps = std::max(2U, steps);
  Machine machine(schedule, layout, rates, steps);
  machine.run();
  Simulation out;
  const auto last = schedule.visits.back().task;
  const auto begin = machine.times()[machine.node(steps - 2, last)].end;
  out.step_seconds = machine.times()[machine.node(steps - 1, last)].end - begin;
  for (Index t = 0; t < schedule.tasks.size(); ++t) {
    const auto& times = machine.times()[machine.node(steps - 1, t)];
    out.tasks.push_back({times.start - begin, times.end - begin});
    const auto& task = schedule.tasks[t];
    if (schedule.settled_by_early(task)) continue;
    if (task.lane == Lane::update) out.update_seconds += static_cast<double>(task.bytes);
    if (task.lane == Lane::read || task.lane == Lane::write) {
      out.transfer_seconds += static_cast<double>(task.bytes) / task.every;
    }
  }
  for (Index v = 0; v < schedule.visits.size(); ++v) out.compute_seconds += visit_seconds(schedule, layout, rates, v);
  out.update_seconds /= rates.update > 0 ? rates.update : 1e9;
  const auto mixed = rates.storage().mixed;
  out.transfer_seconds = mixed > 0 ? out.transfer_seconds / mixed : 0;
  double busy = 0;
  for (const auto& visit : schedule.visits) busy += out.tasks[visit.task].end - out.tasks[visit.task].start;
  out.stall_seconds = std::max(0.0, out.step_seconds - busy);
  const auto most = std::max({out.compute_seconds, out.transfer_seconds, out.update_seconds});
  out.bottleneck = most == out.compute_seconds ? "compute" : most == out.transfer_seconds ? storage_name : "update";
  return out;
}

}  // namespace spillway::plan
