#include "spillway/plan/simulate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>
#include <span>
#include <utility>

#include "spillway/plan/link.h"
#include "spillway/plan/pass_seconds.h"
#include "spillway/plan/path_queue.h"

namespace spillway::plan {
namespace {

/// An early update copies what it changes first: 24 bytes of traffic beside the 26 of an `exact` one.
constexpr double kEarlyWork = 2;
/// The share of a core, or of a memory, that is given to what has none left by the figures.
constexpr double kLeastShare = 0.05;
constexpr double kNever = std::numeric_limits<double>::infinity();
/// Steps whose lengths differ by no more of it are as long as each other.
constexpr double kSteady = 1e-9;

/// Steps after which the same tasks have their turn again.
unsigned turns_of(const Schedule& schedule) {
  unsigned turns = 1;
  for (const auto& task : schedule.tasks) turns = std::max(turns, task.when.every);
  return turns;
}

struct Ready {
  std::uint64_t deadline = 0;
  std::uint64_t node = 0;
  bool operator<(const Ready& other) const {
    return deadline != other.deadline ? deadline > other.deadline : node > other.node;
  }
};

/// One per NUMA node.
std::size_t update_lanes(const Schedule& schedule, const Rates& rates) {
  return std::max(rates.nodes.size(), schedule.update_lanes());
}

/// Which tasks wait for a task of the same step, or of the step before.
class Followers {
 public:
  Followers(const Schedule& schedule, bool previous) : first_(schedule.tasks.size() + 1, 0) {
    const auto each = [&](const auto& body) {
      for (Index t = 0; t < schedule.tasks.size(); ++t) {
        for (const auto& need : schedule.tasks[t].needs) {
          if (need.previous == previous) body(need.task, t);
        }
      }
      for (const auto& pass : schedule.passes) {
        for (const auto t : pass.asks) {
          if (!previous) body(t, pass.task);
        }
      }
    };
    each([&](Index of, Index) { ++first_[of + 1]; });
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    tasks_.resize(first_.back());
    auto next = first_;
    each([&](Index of, Index task) { tasks_[next[of]++] = task; });
  }
  [[nodiscard]] std::span<const Index> of(Index task) const {
    return std::span(tasks_).subspan(first_[task], first_[task + 1] - first_[task]);
  }

 private:
  std::vector<std::size_t> first_;
  std::vector<Index> tasks_;
};

/// Lanes behind those of updates: their work is counted in seconds. (Paths have their place there, and serve apart.)
constexpr std::size_t kFirstTimed = static_cast<std::size_t>(Lane::read);

/// True if the work of a lane's tasks is counted in seconds, whatever else runs.
constexpr bool is_timed(Lane lane) {
  return is_of_device(lane) || traits(lane).server == Server::network;
}

double network_seconds(const Task& task, const Rates& rates) {
  const auto inside = rates.network_inside > 0 ? rates.network_inside : rates.network;
  return rates.network_latency + seconds_at(task.between, rates.network) +
         seconds_at(task.bytes - task.between, inside);
}

/// The work of a task that an average step has: of paths, bytes; of updates, elements; of all others, seconds.
double work_in_average_step(const Task& task, const Schedule& schedule, const Description& description,
                            const state::Layout& layout, const Rates& rates) {
  const auto bytes = static_cast<double>(task.bytes);
  switch (traits(task.lane).server) {
    case Server::caller:
      return std::max(pass_seconds(schedule, layout, rates, task.what.index),
                      weight_seconds(schedule, description, layout, rates, task.what.index));
    case Server::link:
      return copy_seconds(task, schedule, layout, description.rule(), rates);
    case Server::device:
      return seconds_at(task.bytes, rates.device_update);
    case Server::network:
      return network_seconds(task, rates);
    case Server::cores:
      if (task.op == Op::refit) return bytes / rates.update_with(1);
      break;
    case Server::paths:
      break;
  }
  return bytes * (task.when.phase == Phase::early ? kEarlyWork : 1);
}

/// One node per task and step; successors by template.
class Machine {
 public:
  Machine(const Schedule& schedule, const Description& description, const state::Layout& layout, const Rates& rates,
          unsigned steps)
      : schedule_(schedule),
        rates_(rates),
        storage_(rates.storage()),
        steps_(steps),
        tasks_(schedule.tasks.size()),
        same_(schedule, false),
        next_(schedule, true),
        updates_(update_lanes(schedule, rates)),
        turns_(turns_of(schedule)),
        gradient_bytes_(static_cast<double>(state::field_bytes(description.weight_dtype).grad)),
        update_bytes_(static_cast<double>(state::update_bytes(description.rule()))) {
    lanes_.resize(kUpdates + updates_ + kLanes.size() - kFirstTimed);
    work_.resize(tasks_);
    for (Index t = 0; t < tasks_; ++t) {
      const auto& task = schedule.tasks[t];
      if (!task.when.is_free)
        work_[t] = work_in_average_step(task, schedule, description, layout, rates) * task.when.share;
    }
    if (rates.update_cores == 0) idle_ = idle_priority(schedule);
    waiting_.assign(tasks_ * steps, 0);
    times_.resize(tasks_ * steps);
  }

  void run() {
    for (Index t = 0; t < tasks_; ++t) {
      const auto& needs = schedule_.tasks[t].needs;
      waiting_[node(0, t)] = static_cast<std::uint32_t>(std::ranges::count(needs, false, &Dependency::previous));
      for (unsigned step = 1; step < steps_; ++step) {  // none begins before the caller has ended the step before
        waiting_[node(step, t)] = static_cast<std::uint32_t>(needs.size() + 1);
      }
    }
    for (const auto& pass : schedule_.passes) {
      for (unsigned step = 0; step < steps_; ++step) {
        waiting_[node(step, pass.task)] += static_cast<std::uint32_t>(pass.asks.size());
      }
    }
    for (unsigned step = 0; step < steps_; ++step) {
      for (Index t = 0; t < tasks_; ++t) {
        if (waiting_[node(step, t)] == 0) make_ready(node(step, t));
      }
    }
    while (start_lanes()) advance();
  }

  /// Steps that ran: fewer than were asked for where the rest would be as the last ones.
  [[nodiscard]] unsigned steps() const noexcept { return steps_; }
  [[nodiscard]] const std::vector<TaskTimes>& times() const { return times_; }
  [[nodiscard]] std::size_t node(unsigned step, Index task) const { return step * tasks_ + task; }
  /// Seconds of a task; updates: elements; of paths: bytes.
  [[nodiscard]] double work_of(Index task) const { return work_[task]; }

 private:
  struct LaneState {
    std::priority_queue<Ready> ready;
    std::priority_queue<Ready> idle;  ///< of idle priority: they run only while compute waits
    bool busy = false;
    std::size_t node = 0;
    double left = 0;
    double rate = 0;
  };
  /// One direction of the paths.
  struct Transfers {
    PathQueue queue;
    double rate = 0;
  };
  static constexpr std::size_t kCompute = 0, kUpdates = 1;  ///< the first of them

  LaneState& lane_of(const Task& task) {
    if (task.op == Op::compute) return lanes_[kCompute];
    return task.lane == Lane::update ? lanes_[kUpdates + task.unit] : timed(task.lane);
  }
  LaneState& timed(Lane lane) { return lanes_[kUpdates + updates_ + static_cast<std::size_t>(lane) - kFirstTimed]; }

  void make_ready(std::size_t n) {
    const auto& task = schedule_.tasks[n % tasks_];
    const auto deadline = (n / tasks_) * schedule_.positions + task.deadline;
    const bool transfer = is_path(task.lane);
    if ((transfer || traits(task.lane).server == Server::cores) && work(n) <= 0) return skipped_.push_back(n);
    if (transfer) return (is_read(task.lane) ? reads_ : writes_).queue.add(deadline, n, work(n), most_in_flight());
    auto& lane = lane_of(task);
    (!idle_.empty() && idle_[n % tasks_] ? lane.idle : lane.ready).push({deadline, n});
  }

  /// Bytes that the paths have in flight in one direction, while more wait: half where the other one has any.
  [[nodiscard]] double most_in_flight() const {
    const auto paths = static_cast<double>(std::max<std::size_t>(1, rates_.paths.size()));
    const bool both = reads_.queue.any() && writes_.queue.any();
    return static_cast<double>(kHandedOver) * paths / (both ? 2 : 1);
  }

  /// The work of a node: nothing when it is not its turn.
  [[nodiscard]] double work(std::size_t n) const {
    const auto& task = schedule_.tasks[n % tasks_];
    return task.when.has_turn(n / tasks_) ? work_[n % tasks_] : 0;
  }

  bool start_lanes() {
    while (!skipped_.empty()) {
      const auto n = skipped_.back();
      skipped_.pop_back();
      times_[n].start = now_;
      finish(n);
    }
    bool any = false;
    for (auto* transfers : {&reads_, &writes_}) {
      for (const auto n : transfers->queue.hand_over(most_in_flight())) times_[n].start = now_;
      any = any || !transfers->queue.idle();
    }
    for (auto& lane : lanes_) {
      if (auto* ready = lane.busy ? nullptr : next_of(lane)) {
        lane.busy = true;
        lane.node = ready->top().node;
        lane.left = work(lane.node);
        ready->pop();
        times_[lane.node].start = now_;
      }
      any = any || lane.busy;
    }
    return any;
  }

  /// Queue of the lane's next task; null when there is nothing. (Compute is the first lane, and has begun what it can.)
  [[nodiscard]] std::priority_queue<Ready>* next_of(LaneState& lane) const {
    const bool idle = !lane.idle.empty() && !lanes_[kCompute].busy;
    if (idle && (lane.ready.empty() || lane.ready.top() < lane.idle.top())) return &lane.idle;
    return lane.ready.empty() ? nullptr : &lane.ready;
  }

  void set_rates() {
    const bool own = rates_.update_cores > 0;  // updates and the paths' threads take nothing of what compute has
    const bool reads = !reads_.queue.idle(), writes = !writes_.queue.idle();
    const bool both = reads && writes;
    for (auto lane = kUpdates + updates_; lane < lanes_.size(); ++lane) lanes_[lane].rate = 1;  // seconds already
    reads_.rate = both ? storage_.mixed / 2 : storage_.read;
    writes_.rate = both ? storage_.mixed / 2 : storage_.write;
    const double moved = (reads ? reads_.rate : 0) + (writes ? writes_.rate : 0);
    set_core_rates(own, own ? 0 : rates_.io_cores * (storage_.mixed > 0 ? std::min(1.0, moved / storage_.mixed) : 0));
    share_device();
  }

  /// `io`: cores that transfers take now.
  void set_core_rates(bool own, double io) {
    const bool computes = lanes_[kCompute].busy;
    const double cores = std::max(1U, rates_.cores);
    const double left = std::max(kLeastShare, 1 - io / cores);
    const double beside = own ? 0 : update_threads();
    lanes_[kCompute].rate = left * (beside > 0 ? share_beside(cores, beside) : 1);
    if (updates_ > 1 || !rates_.nodes.empty()) {
      const double share = computes ? std::min(1.0, cores * left / (cores + beside))
                                    : std::min(1.0, cores * left / std::max(1.0, beside));
      set_node_rates(own ? own_share() : share, !own && !computes && cores - io >= update_threads() + 1);
    } else if (own) {
      lanes_[kUpdates].rate = std::min(rates_.update_with(rates_.update_cores), left_of_memory(0, rates_.update_all));
    } else {
      // While compute waits, its cores update, too.
      lanes_[kUpdates].rate = computes ? left * update_beside(cores) : rates_.update_with(std::max(1.0, cores - io));
    }
  }

  /// Share of its speed that compute has beside so many updating threads; with one of them it was measured.
  [[nodiscard]] double share_beside(double cores, double threads) const {
    return rates_.compute_beside > 0 && threads <= 1 ? rates_.compute_beside : cores / (cores + threads);
  }

  /// Elements per second of one thread beside compute.
  [[nodiscard]] double update_beside(double cores) const {
    return rates_.update_beside > 0 ? rates_.update_beside : rates_.update_with(cores / (cores + 1));
  }

  /// Updates on a device take of what passes there have.
  void share_device() {
    auto& update = timed(Lane::device_update);
    if (!update.busy || !lanes_[kCompute].busy) return;
    update.rate /= 2;
    lanes_[kCompute].rate /= 2;
  }

  [[nodiscard]] const NodeRates& rates_of(std::size_t unit) const {
    static const NodeRates kUnknown;
    return unit < rates_.nodes.size() ? rates_.nodes[unit] : kUnknown;
  }

  /// The threads of the lanes that are updating.
  [[nodiscard]] double update_threads() const {
    double out = 0;
    for (std::size_t unit = 0; unit < updates_; ++unit) {
      if (lanes_[kUpdates + unit].busy) out += rates_.nodes.empty() ? 1 : rates_of(unit).threads;
    }
    return out;
  }

  /// Share of their own cores that lanes get.
  [[nodiscard]] double own_share() const {
    return std::min(1.0, rates_.update_cores / std::max(1.0, update_threads()));
  }

  /// While compute waits, its thread helps the first lane that is updating.
  void set_node_rates(double share, bool helps) {
    for (std::size_t unit = 0; unit < updates_; ++unit) {
      auto& lane = lanes_[kUpdates + unit];
      const auto& rates = rates_of(unit);
      lane.rate = rates.scale_to(rates.threads * share + (lane.busy && helps ? 1 : 0));
      if (rates_.update_cores > 0) lane.rate = std::min(lane.rate, left_of_memory(unit, rates.update));
      if (lane.busy) helps = false;
    }
  }

  /// Elements per second that a node's memory has bandwidth for while copies of a GPU's link and updates of other nodes
  /// take theirs. `most`: that no number of threads exceeds, so that it is the memory's; 0: unknown.
  [[nodiscard]] double left_of_memory(std::size_t node, double most) {
    if (most <= 0) return kNever;
    double left = most;
    for (const auto lane : {Lane::to_device, Lane::from_device}) {
      const auto& copies = timed(lane);
      if (!copies.busy || work(copies.node) <= 0) continue;
      const auto& task = schedule_.tasks[copies.node % tasks_];
      if (node_of_copy(task, schedule_) != node) continue;
      left -= static_cast<double>(task.bytes) / work(copies.node) / update_bytes_;
    }
    for (std::size_t unit = 0; unit < updates_; ++unit) {
      if (unit != node) left -= reads_gradient_from(unit, node);
    }
    return std::max(left, kLeastShare * most);
  }

  /// The elements per second that a node's memory could update in place of the gradients that a lane of another node
  /// reads there.
  [[nodiscard]] double reads_gradient_from(std::size_t unit, std::size_t node) {
    const auto& lane = lanes_[kUpdates + unit];
    if (!lane.busy || work(lane.node) <= 0) return 0;
    const auto chunk = schedule_.tasks[lane.node % tasks_].what.index;
    const auto& gradient = schedule_.groups[chunk].grad;
    if (!gradient.any() || schedule_.buffers[gradient.buffer].node != node) return 0;
    return rates_of(unit).update * gradient_bytes_ / update_bytes_;
  }

  void advance() {
    set_rates();
    double wait = kNever;
    for (auto& active : lanes_) {
      if (active.busy) wait = std::min(wait, active.rate > 0 ? active.left / active.rate : 0);
    }
    for (const auto* it : {&reads_, &writes_}) {
      if (!it->queue.idle()) wait = std::min(wait, it->rate > 0 ? it->queue.next_bytes() / it->rate : 0);
    }
    now_ += wait;
    for (auto* it : {&reads_, &writes_}) move(*it, wait);
    for (auto& active : lanes_) {
      if (!active.busy) continue;
      active.left -= wait * active.rate;
      if (active.rate > 0 && active.left > 1e-9 * std::max(1.0, work_[active.node % tasks_])) continue;
      active.busy = false;
      finish(active.node);
    }
  }

  void move(Transfers& transfers, double seconds) {
    auto& queue = transfers.queue;
    if (queue.idle()) return;
    const auto next = queue.next_bytes();
    const auto ended = queue.move(transfers.rate > 0 ? std::min(next, seconds * transfers.rate) : next);
    if (ended) finish(*ended);
  }

  void finish(std::size_t n) {
    times_[n].end = now_;
    ++finished_;
    const auto step = n / tasks_;
    const auto task = static_cast<Index>(n % tasks_);
    if (task == schedule_.passes.back().task && ends_steady_step(step)) steps_ = static_cast<unsigned>(step) + 1;
    for (const auto t : same_.of(task)) release(step * tasks_ + t);
    if (step + 1 == steps_) return;
    for (const auto t : next_.of(task)) release((step + 1) * tasks_ + t);
    if (task != schedule_.passes.back().task) return;
    for (Index t = 0; t < tasks_; ++t) release((step + 1) * tasks_ + t);
  }

  /// True if a step whose last pass has ended took as long as the one before, and left as many tasks behind: no backlog
  /// grows. False if tasks have their turn in some steps only.
  bool ends_steady_step(std::size_t step) {
    ends_.push_back({now_, (step + 1) * tasks_ - finished_});
    if (turns_ > 1 || ends_.size() < 4) return false;
    const auto *last = &ends_.back(), *before = last - 1, *first = last - 2;
    const auto seconds = last->seconds - before->seconds;
    return last->left == before->left && std::abs(seconds - (before->seconds - first->seconds)) <= kSteady * seconds;
  }

  void release(std::size_t n) {
    if (--waiting_[n] == 0) make_ready(n);
  }

  /// The end of a step's last pass.
  struct End {
    double seconds = 0;
    std::size_t left = 0;  ///< tasks of it and of the steps before that have not ended
  };

  const Schedule& schedule_;
  const Rates& rates_;
  const PathRates storage_;
  unsigned steps_;
  std::size_t tasks_;
  const Followers same_, next_;
  std::vector<double> work_;
  std::vector<bool> idle_;  ///< by task; empty: updates have cores of their own
  std::vector<std::uint32_t> waiting_;
  std::vector<TaskTimes> times_;
  std::size_t updates_;
  std::vector<LaneState> lanes_;
  Transfers reads_, writes_;
  std::vector<std::size_t> skipped_;  ///< that are ready, and have nothing to do
  double now_ = 0;
  const unsigned turns_;
  const double gradient_bytes_;  ///< of an element
  const double update_bytes_;    ///< that an update of an element moves
  std::size_t finished_ = 0;     ///< tasks of all steps
  std::vector<End> ends_;        ///< by step
};

/// Seconds of all updates: on one core, or by the nodes together, of which the last ends.
double update_seconds(const Schedule& schedule, const Rates& rates) {
  std::vector<double> elements(update_lanes(schedule, rates), 0);
  for (const auto& task : schedule.tasks) {
    if (task.lane == Lane::update && task.when.only != OnlyIf::no_early_update) {
      elements[task.unit] += static_cast<double>(task.bytes) * task.when.share;
    }
  }
  if (elements.size() == 1 && rates.nodes.empty()) return elements[0] / rates.update_with(1);
  double longest = 0;
  for (std::size_t unit = 0; unit < elements.size(); ++unit) {
    const auto node = unit < rates.nodes.size() ? rates.nodes[unit] : NodeRates{};
    longest = std::max(longest, elements[unit] / node.scale_to(node.threads));
  }
  return longest;
}

}  // namespace

Simulation simulate(const Schedule& schedule, const Description& description, const state::Layout& layout,
                    const Rates& rates, unsigned steps, const std::string& storage_name) {
  const auto turns = turns_of(schedule);
  steps = std::max(turns + 2, steps);  // the first one begins with everything idle
  Machine machine(schedule, description, layout, rates, steps);
  machine.run();
  steps = machine.steps();
  Simulation out;
  const auto end_of = [&](unsigned step) {
    return machine.times()[machine.node(step, schedule.passes.back().task)].end;
  };
  const auto begin = end_of(steps - 2);
  out.step_seconds = (end_of(steps - 1) - end_of(steps - 1 - turns)) / turns;
  for (Index t = 0; t < schedule.tasks.size(); ++t) {
    const auto& times = machine.times()[machine.node(steps - 1, t)];
    out.tasks.push_back({times.start - begin, times.end - begin});
    const auto& task = schedule.tasks[t];
    const auto mean = machine.work_of(t) / task.when.every;
    if (is_path(task.lane)) out.transfer_seconds += mean;
    if (is_timed(task.lane)) out.seconds[task.lane] += mean;
  }
  for (Index v = 0; v < schedule.passes.size(); ++v) out.compute_seconds += pass_seconds(schedule, layout, rates, v);
  out.update_seconds = update_seconds(schedule, rates);
  const auto mixed = rates.storage().mixed;
  out.transfer_seconds = mixed > 0 ? out.transfer_seconds / mixed : 0;
  double busy = 0;
  for (const auto& pass : schedule.passes) busy += out.tasks[pass.task].end - out.tasks[pass.task].start;
  out.stall_seconds = std::max(0.0, out.step_seconds - busy);
  std::vector<std::pair<double, std::string>> parts{
      {out.compute_seconds, "compute"}, {out.transfer_seconds, storage_name}, {out.update_seconds, "update"}};
  for (std::size_t lane = 0; lane < kLanes.size(); ++lane)
    parts.emplace_back(out.seconds.values[lane], kLanes[lane].name);
  out.bottleneck = std::ranges::max_element(parts, {}, &std::pair<double, std::string>::first)->second;
  return out;
}

}  // namespace spillway::plan
