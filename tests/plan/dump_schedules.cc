// Prints random schedules as text for comparison before and after a change: dump_schedules [COUNT [SEED]].
//
// Each line names a task, a buffer or a pass by its attributes and by a digest of its neighbours in the graph. Lines of
// a schedule are sorted. Two builds that make equal graphs print equal text, in whatever order they add tasks.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "spillway/plan/arena_layout.h"
#include "spillway/plan/simulate.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan {
namespace {

constexpr int kRounds = 4;  // steps in the graph that a digest reaches

/// FNV-1a.
std::uint64_t digest(const std::string& text) {
  std::uint64_t out = 14695981039346656037U;
  for (const auto letter : text) out = (out ^ static_cast<unsigned char>(letter)) * 1099511628211U;
  return out;
}

template <class... Values>
std::string join(const char* name, Values... values) {
  std::string out = name;
  ((out += ' ' + std::to_string(values)), ...);
  return out;
}

/// Digests of the tasks and buffers of a schedule, from their attributes and those of their neighbours.
class Graph {
 public:
  explicit Graph(const Schedule& schedule) : out_(schedule) {
    for (const auto& task : out_.tasks) tasks_.push_back(digest(attributes_of(task)));
    for (const auto& buffer : out_.buffers) buffers_.push_back(digest(attributes_of(buffer)));
    for (int round = 0; round < kRounds; ++round) refine();
  }

  /// Sorted.
  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> out;
    for (const auto& it : out_.tasks) out.push_back(attributes_of(it) + neighbours_of(it));
    for (const auto& it : out_.buffers) out.push_back(attributes_of(it) + neighbours_of(it));
    for (Index p = 0; p < out_.passes.size(); ++p) out.push_back(line_of(p));
    for (Index c = 0; c < out_.groups.size(); ++c) out.push_back(line_of_chunk(c));
    for (const auto& it : out_.activations) out.push_back(join("activation", it.what.index, it.bytes));
    std::string network = "network";
    for (const auto t : out_.network) network += ' ' + std::to_string(tasks_[t]);
    out.push_back(network);
    out.push_back(join("bytes", out_.network_sent, out_.network_received, out_.sent_between, out_.received_between,
                       out_.positions, out_.tasks.size(), out_.buffers.size()));
    std::ranges::sort(out);
    return out;
  }

 private:
  static std::string attributes_of(const Task& it) {
    const auto& when = it.when;
    return join("task", static_cast<int>(it.op), static_cast<int>(it.lane), it.unit, static_cast<int>(it.what.kind),
                it.what.index, it.what.count, it.bytes, it.between, it.deadline, static_cast<int>(when.phase)) +
           join(" when", when.every, when.turn, static_cast<int>(when.only), when.share) +
           join(" flags", static_cast<int>(it.by_rows), static_cast<int>(when.from_others),
                static_cast<int>(when.feeds_update), static_cast<int>(when.stores_gradient),
                static_cast<int>(when.is_free));
  }
  static std::string attributes_of(const Buffer& it) {
    return join("buffer", static_cast<int>(it.kind), static_cast<int>(it.tier), it.node, it.bytes, it.first, it.last,
                static_cast<int>(it.whole));
  }

  [[nodiscard]] std::string task(Index t) const { return ' ' + (t == kNone ? "-" : std::to_string(tasks_[t])); }
  [[nodiscard]] std::string buffer(Index b) const { return ' ' + (b == kNone ? "-" : std::to_string(buffers_[b])); }
  [[nodiscard]] std::string place(const Place& it) const {
    return buffer(it.buffer) + (it.any() ? '+' + std::to_string(it.offset) : "");
  }
  [[nodiscard]] std::string tasks(const char* name, const std::vector<Index>& all) const {
    std::vector<std::string> out;
    for (const auto t : all) out.push_back(task(t));
    return merge(name, std::move(out));
  }
  static std::string merge(const char* name, std::vector<std::string> all) {
    std::ranges::sort(all);
    std::string out = name;
    for (const auto& it : all) out += it;
    return out;
  }

  [[nodiscard]] std::string neighbours_of(const Task& it) const {
    std::vector<std::string> needs;
    for (const auto& need : it.needs) needs.push_back(task(need.task) + (need.previous ? '<' : '.'));
    return " from" + place(it.from) + " to" + place(it.to) + merge(" needs", std::move(needs));
  }
  [[nodiscard]] std::string neighbours_of(const Buffer& it) const {
    return tasks(" first", it.first_tasks) + tasks(" last", it.last_tasks) + tasks(" earlier", it.earlier_tasks);
  }
  [[nodiscard]] std::string line_of(Index p) const {
    const auto& pass = out_.passes[p];
    auto out = join("pass", p, static_cast<int>(pass.kind), pass.block, pass.slice, pass.position,
                    static_cast<int>(pass.on_host), static_cast<int>(pass.saved)) +
               task(pass.task) + " operands";
    for (const auto it : pass.operands) out += buffer(it);
    for (const auto& it : pass.weights) {
      out += join(" weights", it.chunks.first, it.chunks.count) + buffer(it.here) + buffer(it.whole);
    }
    return out + tasks(" asks", pass.asks);
  }
  [[nodiscard]] std::string groups(const GroupPlaces& it) const {
    return " groups" + place(it.weight) + place(it.state) + place(it.grad) + place(it.change);
  }
  [[nodiscard]] std::string line_of_chunk(Index c) const {
    auto out = join("chunk", c, out_.snapshot_every[c], out_.snapshot_turn[c], out_.node[c]) +
               task(out_.update_task[c]) + task(out_.refit_task[c]) + buffer(out_.resident_weight[c]) +
               buffer(out_.resident_state[c]) + " early" + task(out_.early[c].task) + buffer(out_.early[c].undo) +
               place(out_.early[c].grad) + groups(out_.groups[c]);
    if (!out_.device_groups.empty()) out += groups(out_.device_groups[c]);
    if (out_.changes.empty()) return out;
    const auto& it = out_.changes[c];
    return out + " change" + place(it.here) + place(it.there) + place(it.weight) + place(it.remainder);
  }

  void refine() {
    std::vector<std::uint64_t> tasks, buffers;
    for (Index t = 0; t < tasks_.size(); ++t) {
      tasks.push_back(digest(std::to_string(tasks_[t]) + neighbours_of(out_.tasks[t])));
    }
    for (Index b = 0; b < buffers_.size(); ++b) {
      buffers.push_back(digest(std::to_string(buffers_[b]) + neighbours_of(out_.buffers[b])));
    }
    tasks_ = std::move(tasks);
    buffers_ = std::move(buffers);
  }

  const Schedule& out_;
  std::vector<std::uint64_t> tasks_, buffers_;
};

/// Arenas and the seconds of a step, as plans say them.
std::string line_of_plan(Schedule schedule, const Description& description, const state::Layout& layout) {
  const auto host = lay_out(schedule), device = lay_out(schedule, TierKind::device);
  add_reuse_dependencies(schedule);
  Rates rates{.cores = 2, .paths = {{1e9, 8e8, 9e8}}, .update = 1e8, .forward = 1e-3, .backward = 2e-3};
  rates.to_device = rates.from_device = 1e9;
  rates.device_update = 1e8;
  rates.network = 1e9;
  return join("plan", host, device, live_peak(schedule),
              1e9 * simulate(schedule, description, layout, rates, 4).step_seconds);
}

/// Of a run of one process or several, with or without a device, paths and nodes of memory, durable or not.
void print(int round, std::mt19937& random) {
  auto shape = test::random_shape(random, round);
  if (round % 3 == 1) shape.subspace = random() % 2 == 0 ? "up|down" : "up";
  if (random() % 3 == 0) test::freeze_some(shape, random);
  if (random() % 4 == 0) shape.packed = "up|down";
  if (random() % 6 == 0) shape.fp32 = "norm";
  if (random() % 5 == 0) {
    shape.experts = 2 + static_cast<std::int64_t>(random() % 3);
    shape.asked = random() % 2 == 0 ? 1 : 0.5;
    shape.uneven = random() % 3 == 0;
  }
  shape.bf16_masters = random() % 3 == 0;
  shape.optimizer = random() % 4 == 0 ? &optim::sgd : &optim::adamw;
  if (random() % 6 == 0) shape.compute = state::ComputeType::fp32;
  shape.virtual_ranks = 1 + random() % 4;
  shape.micro_batches = 1 + random() % 9;
  shape.chunk_elements = random() % 2 == 0 ? 8192 : 2048;
  const auto size = 1 + random() % shape.virtual_ranks;
  shape.shard_frozen = size > 1 && random() % 4 == 0;
  auto description = test::describe(shape);
  description.world = {.size = size, .rank = random() % size, .local = random() % 2 == 0 ? size : 1};
  description.step_tokens = 4 * description.tokens;
  const auto layout = description.layout();
  const bool on_host = random() % 2 == 0 || (size > 1 && shape.experts > 0);
  auto placement =
      on_host ? test::random_placement_of(layout, random) : test::random_device_placement(description, layout, random);
  if (!placement.device && random() % 4 == 0) {
    std::vector<std::uint16_t> nodes(layout.chunks().size());
    for (auto& it : nodes) it = static_cast<std::uint16_t>(random() % 2);
    placement.set_nodes(nodes);
  }
  if (size == 1 && random() % 8 == 0) placement = test::changing_placement(description, layout);
  if (size > 1 && random() % 2 == 0) keep_own_weights(description, layout, placement, true);
  for (Index c = 0; size > 1 && c < layout.chunks().size(); ++c) {  // a planner places what its process has
    if (!description.has(layout, layout.chunks()[c]) && random() % 2 == 0) placement.chunks[c].gradient.keep();
  }
  const Lookahead ahead{.state_read = 1 + static_cast<std::uint32_t>(random() % 3),
                        .write = 1 + static_cast<std::uint32_t>(random() % 3),
                        .weight_read = 1 + static_cast<std::uint32_t>(random() % 3),
                        .backward = 1 + static_cast<std::uint32_t>(random() % 3),
                        .grad_write = static_cast<std::uint32_t>(random() % 3),
                        .head = static_cast<std::uint32_t>(random() % 3),
                        .device = static_cast<std::uint32_t>(random() % 4),
                        .coalesce_to = random() % 3 == 0 ? kGoodCopy : random() % (64 * KiB)};
  auto saved = random() % 2 == 0 ? test::random_saved(layout, random) : SavedPlacement{};
  if (random() % 2 == 0) saved.home = {TierKind::host};
  const auto schedule =
      make_schedule(description, layout, placement, ahead, {.gradients = random() % 2 == 0, .period = 3}, saved);
  std::printf("schedule %d\n", round);
  for (const auto& line : Graph(schedule).lines()) std::printf("%s\n", line.c_str());
  std::printf("%s\n", line_of_plan(schedule, description, layout).c_str());
}

}  // namespace
}  // namespace spillway::plan

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 1500;
  std::mt19937 random(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1);
  for (int round = 0; round < count; ++round) spillway::plan::print(round, random);
}
