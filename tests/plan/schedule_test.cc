#include "spillway/plan/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "spillway/plan/arena_layout.h"
#include "spillway/plan/simulate.h"
#include "spillway/plan/traffic.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan {
namespace {

using test::describe;
using test::Shape;

bool alive(const Buffer& buffer, std::uint32_t position) {
  if (buffer.whole) return true;
  if (buffer.first <= buffer.last) return buffer.first <= position && position <= buffer.last;
  return position >= buffer.first || position <= buffer.last;
}

void expect_disjoint(const Schedule& schedule, Bytes total) {
  for (std::uint32_t p = 0; p < schedule.positions; ++p) {
    std::vector<std::pair<Bytes, Bytes>> ranges;
    for (const auto& buffer : schedule.buffers) {
      if (alive(buffer, p)) ranges.emplace_back(buffer.offset, buffer.offset + buffer.bytes);
    }
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 1; i < ranges.size(); ++i)
      ASSERT_LE(ranges[i - 1].second, ranges[i].first) << "position " << p;
    if (!ranges.empty()) {
      ASSERT_LE(ranges.back().second, total);
    }
  }
}

/// Runs `steps` instances in any order the dependencies allow; true when every task ran.
bool completes(const Schedule& schedule, std::size_t steps, std::mt19937& random) {
  const auto n = schedule.tasks.size();
  std::vector<std::vector<std::size_t>> after(n * steps);
  std::vector<int> waiting(n * steps, 0);
  for (std::size_t s = 0; s < steps; ++s) {
    for (std::size_t t = 0; t < n; ++t) {
      for (const auto& need : schedule.tasks[t].needs) {
        if (need.previous && s == 0) continue;
        after[(need.previous ? s - 1 : s) * n + need.task].push_back(s * n + t);
        ++waiting[s * n + t];
      }
    }
    if (s > 0) {  // the caller begins a step when the one before has ended
      after[(s - 1) * n + schedule.passes.back().task].push_back(s * n + schedule.passes.front().task);
      ++waiting[s * n + schedule.passes.front().task];
    }
  }
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i] == 0) ready.push_back(i);
  }
  std::size_t done = 0;
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    const auto task = ready.back();
    ready.pop_back();
    ++done;
    for (const auto next : after[task]) {
      if (--waiting[next] == 0) ready.push_back(next);
    }
  }
  return done == waiting.size();
}

TEST(Schedule, RandomPlacementsNeverShareLiveBytesAndNeverDeadlock) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Shape shape;
    shape.layers = 1 + static_cast<std::int64_t>(random() % 5);
    shape.tied = random() % 2 == 0;
    shape.head = random() % 4 != 0;
    shape.embedding = random() % 4 != 0;
    shape.micro_batches = 1 + random() % 2;
    shape.chunk_elements = 2048ULL << (random() % 4);
    if (round % 2 == 1) shape.frozen = test::kFrozenParts[random() % test::kFrozenParts.size()];
    const auto description = describe(shape);
    const state::Layout layout(description.blocks, description.chunk_elements);
    const Lookahead ahead{.state_read = 1 + static_cast<std::uint32_t>(random() % layout.chunks().size()),
                          .write = 1 + static_cast<std::uint32_t>(random() % layout.chunks().size()),
                          .weight_read = 1 + static_cast<std::uint32_t>(random() % 8),
                          .backward = 1 + static_cast<std::uint32_t>(random() % 4),
                          .grad_write = static_cast<std::uint32_t>(random() % 5),
                          .head = 1 + static_cast<std::uint32_t>(random() % 4)};
    const Redo redo{.gradients = random() % 2 == 0, .period = 1 + static_cast<std::uint32_t>(random() % 4)};
    auto schedule = make_schedule(description, layout, test::random_placement_of(layout, random), ahead, redo,
                                  test::random_saved(layout, random));
    const auto total = lay_out(schedule);
    EXPECT_GE(total, live_peak(schedule));
    expect_disjoint(schedule, total);
    add_reuse_dependencies(schedule);
    ASSERT_TRUE(completes(schedule, 3, random)) << "round " << round;
  }
}

TEST(Schedule, OnlyChunksWhoseWeightAndStateStayInMemoryAreEarlyAndTheirOldVersionLastsUntilTheStepEnds) {
  std::mt19937 random(5);
  std::size_t early = 0;
  for (int round = 0; round < 50; ++round) {
    const auto description = describe({.layers = 3, .tied = round % 2 == 0, .chunk_elements = 4096});
    const state::Layout layout(description.blocks, description.chunk_elements);
    const auto placement = test::random_placement_of(layout, random);
    const auto schedule = make_schedule(description, layout, placement, {});
    for (Index c = 0; c < layout.chunks().size(); ++c) {
      const auto& it = schedule.early[c];
      ASSERT_EQ(it.task != kNone, placement[c].when == When::early && can_be_early(layout, placement, c));
      if (it.task == kNone) continue;
      ++early;
      const auto& undo = schedule.buffers[it.undo];
      ASSERT_TRUE(placement[c].weight.in_memory() && placement[c].state.in_memory());
      ASSERT_EQ(undo.bytes, layout.chunks()[c].elements * 12);
      ASSERT_EQ(undo.last, schedule.positions - 1);
      const auto made =
          std::ranges::find_if(schedule.passes, [&](const auto& v) { return v[Operand::gradient] == it.grad.buffer; });
      ASSERT_EQ(undo.first, made->position);
      const auto& needs = schedule.tasks[it.task].needs;
      ASSERT_TRUE(std::ranges::any_of(needs, [&](const auto& n) { return n.task == made->task && !n.previous; }));
    }
  }
  EXPECT_GT(early, 0U);
}

TEST(Schedule, AnEarlyUpdateWaitsForTheSnapshotOfTheVersionItChanges) {
  const auto description = describe({});
  const state::Layout layout(description.blocks, description.chunk_elements);
  const auto schedule =
      make_schedule(description, layout, test::placement_of(layout, {.when = When::early}), {}, {.gradients = true});
  std::size_t early = 0, snapshots = 0;
  for (const auto& it : schedule.early) {
    if (it.task == kNone) continue;
    ++early;
    for (const auto& need : schedule.tasks[it.task].needs) {
      const auto& task = schedule.tasks[need.task];
      snapshots += task.moves(Lane::write, ObjectKind::weight) || task.moves(Lane::write, ObjectKind::state) ? 1 : 0;
    }
  }
  EXPECT_GT(early, 0U);
  EXPECT_EQ(snapshots, 2 * early);
}

/// Most bytes of gradients that are alive at once, and of these what was placed in memory until its update.
struct GradientBytes {
  Bytes alive = 0, placed = 0;
};

GradientBytes gradient_bytes(const Schedule& schedule, const Placement& placement) {
  std::vector<bool> resident(schedule.buffers.size(), false);
  for (Index c = 0; c < placement.chunks.size(); ++c) {
    if (placement[c].gradient.in_memory() && schedule.groups[c].grad.buffer != kNone)
      resident[schedule.groups[c].grad.buffer] = true;
  }
  const auto rows = schedule.shared(Operand::rows);
  if (rows != kNone) resident[rows] = true;  // the rows of an embedding always wait in memory
  GradientBytes out;
  for (std::size_t b = 0; b < resident.size(); ++b) out.placed += resident[b] ? schedule.buffers[b].bytes : 0;
  for (std::uint32_t p = 0; p < schedule.positions; ++p) {
    Bytes now = 0;
    for (const auto& buffer : schedule.buffers) {
      now += buffer.kind == BufferClass::grad && alive(buffer, p) ? buffer.bytes : 0;
    }
    out.alive = std::max(out.alive, now);
  }
  return out;
}

TEST(Schedule, GradientsTakeNoMoreThanOneBlockAndWhatWasPlaced) {
  std::mt19937 random(9);
  for (int round = 0; round < 100; ++round) {
    const auto description = describe({.layers = 1 + static_cast<std::int64_t>(random() % 5),
                                       .tied = random() % 2 == 0,
                                       .micro_batches = 1 + random() % 2,
                                       .chunk_elements = 2048ULL << (random() % 4)});
    const state::Layout layout(description.blocks, description.chunk_elements);
    Bytes block = 0;  // a head's gradient is made by slice
    for (const auto& it : layout.blocks()) {
      if (it.role == state::BlockRole::layer) block = std::max(block, it.elements * 2);
    }
    block = std::max(block, layout.largest_chunk() * 2);
    const auto placement = test::random_placement_of(layout, random);
    const auto bytes = gradient_bytes(make_schedule(description, layout, placement, {.grad_write = 0}), placement);
    ASSERT_LE(bytes.alive, block + bytes.placed) << "round " << round;
  }
}

TEST(Schedule, EverythingOnThePathMovesThirtyBytesPerParameterOfALayer) {
  const auto description = describe({.layers = 4, .embedding = false, .head = false, .tied = false});
  const state::Layout layout(description.blocks, description.chunk_elements);
  const auto schedule = make_schedule(description, layout, test::placement_of(layout, {false, false, false}), {});
  Bytes moved = 0, elements = 0;
  for (const auto& task : schedule.tasks) moved += task.lane == Lane::read || task.lane == Lane::write ? task.bytes : 0;
  for (const auto& chunk : layout.chunks()) elements += chunk.elements;
  EXPECT_EQ(moved, 30 * elements);
}

TEST(Schedule, WhatIsFrozenIsReadTwiceAndNeverWrittenOrUpdated) {
  const auto description =
      describe({.layers = 4, .embedding = false, .head = false, .tied = false, .frozen = "up|down"});
  const auto layout = description.layout();
  const auto schedule = make_schedule(description, layout, test::placement_of(layout, {false, false, false}), {},
                                      {.gradients = true, .period = 4});
  std::vector<Bytes> read(layout.chunks().size(), 0), written = read;
  for (const auto& task : schedule.tasks) {
    if (task.lane == Lane::read) read[task.what.index] += task.bytes;
    if (task.lane == Lane::write) written[task.what.index] += task.bytes;
  }
  std::size_t frozen = 0;
  for (const auto& chunk : layout.chunks()) {
    const auto c = static_cast<Index>(chunk.id);
    const bool is_trainable = state::is_trainable(chunk.training);
    EXPECT_EQ(schedule.update_task[c] == kNone, !is_trainable);
    EXPECT_EQ(schedule.snapshot_every[c] == 0, !is_trainable);
    EXPECT_EQ(read[c], chunk.elements * (is_trainable ? 16 : 4));
    EXPECT_EQ(written[c], is_trainable ? chunk.elements * 14 : 0);
    frozen += is_trainable ? 0 : 1;
  }
  EXPECT_EQ(frozen, 4 * 2U);
  for (const auto& pass : schedule.passes) {
    if (pass.kind != PassKind::backward) continue;
    ASSERT_NE(pass[Operand::gradient], kNone);
    EXPECT_EQ(schedule.buffers[pass[Operand::gradient]].bytes, layout.blocks()[pass.block].trainable_elements * 2);
    EXPECT_EQ(schedule.buffers[pass[Operand::gradient_sums]].bytes, layout.blocks()[pass.block].trainable_elements * 4);
  }
}

std::vector<PassKind> kinds(const Schedule& schedule) {
  std::vector<PassKind> out;
  for (const auto& pass : schedule.passes) out.push_back(pass.kind);
  return out;
}

TEST(Schedule, BackwardEndsAtTheLowestTrainableLayer) {
  const auto passes = [](const Shape& shape) {
    const auto description = describe(shape);
    const auto layout = description.layout();
    return kinds(make_schedule(description, layout, test::placement_of(layout), {}));
  };
  const auto count = [](const std::vector<PassKind>& in, PassKind kind) { return std::ranges::count(in, kind); };
  const auto upper = passes({.layers = 4, .tied = false, .chunk_elements = 1 << 20, .frozen = "embed|layers.[01]"});
  EXPECT_EQ(count(upper, PassKind::backward), 3) << "layers 2 and 3, and the norm";
  EXPECT_EQ(count(upper, PassKind::embedding_backward), 0);
  EXPECT_EQ(count(upper, PassKind::head_gradient), 1);
  const auto table = passes({.layers = 4, .chunk_elements = 1 << 20, .frozen = "layers|norm"});
  EXPECT_EQ(count(table, PassKind::backward), 5) << "the embedding below them is trainable";
  EXPECT_EQ(count(table, PassKind::embedding_backward), 1);
  const auto head = passes({.layers = 4, .tied = false, .chunk_elements = 1 << 20, .frozen = "embed|layers|norm"});
  EXPECT_EQ(count(head, PassKind::backward), 0);
  EXPECT_EQ(head.back(), PassKind::head_gradient);
}

TEST(Schedule, EverythingInDramMovesNothing) {
  const auto description = describe({});
  const state::Layout layout(description.blocks, description.chunk_elements);
  const auto schedule = make_schedule(description, layout, test::placement_of(layout), {});
  for (const auto& task : schedule.tasks) EXPECT_TRUE(task.lane == Lane::compute || task.lane == Lane::update);
}

TEST(Schedule, UpdatesCanWaitWhereNoReadWaitsForThem) {
  const auto description = test::describe({.layers = 4});
  const state::Layout layout(description.blocks, description.chunk_elements);
  const auto n = layout.chunks().size();
  auto placement = test::placement_of(layout);
  const auto idle = [&] {
    auto schedule = make_schedule(description, layout, placement, {});
    static_cast<void>(lay_out(schedule));
    add_reuse_dependencies(schedule);
    const auto flags = idle_priority(schedule);
    std::vector<bool> out;
    for (const auto task : schedule.update_task) out.push_back(flags[task]);
    return out;
  };
  EXPECT_EQ(idle(), std::vector<bool>(n, true));
  placement.chunks[n / 2].state = {};
  const auto found = idle();
  EXPECT_FALSE(found[n / 2]);
  EXPECT_TRUE(found.back()) << "what the others let go of is not what its reads wait for";
}

bool needs(const Schedule& schedule, Index task, Index on, bool previous) {
  return std::ranges::any_of(schedule.tasks[task].needs,
                             [&](const Dependency& need) { return need.task == on && need.previous == previous; });
}

TEST(Schedule, WhatTakesAGradientWaitsForItsProjectors) {
  std::mt19937 random(9);
  std::size_t refits = 0, writes = 0, early = 0;
  for (int round = 0; round < 60; ++round) {
    auto shape = test::random_shape(random, round);
    shape.subspace = round % 2 == 0 ? "up|down" : "up";
    const auto description = describe(shape);
    const auto layout = description.layout();
    const auto placement = test::random_placement_of(layout, random);
    const auto schedule = make_schedule(description, layout, placement, {}, {.gradients = random() % 2 == 0});
    for (Index c = 0; c < layout.chunks().size(); ++c) {
      const auto refit = schedule.refit_task[c];
      ASSERT_EQ(refit != kNone, layout.chunks()[c].reduced.any());
      if (refit == kNone) continue;
      ++refits;
      EXPECT_TRUE(needs(schedule, schedule.update_task[c], refit, true));
      if (const auto task = schedule.early[c].task; task != kNone) {
        ++early;
        EXPECT_TRUE(needs(schedule, task, refit, false));
      }
      for (Index t = 0; t < schedule.tasks.size(); ++t) {
        if (!schedule.tasks[t].moves(Lane::write, ObjectKind::gradient) || schedule.tasks[t].what.index != c) continue;
        ++writes;
        EXPECT_TRUE(needs(schedule, t, refit, false));
      }
    }
  }
  EXPECT_GT(refits, 50U);
  EXPECT_GT(writes, 20U);
  EXPECT_GT(early, 0U);
}

TEST(Schedule, RefitsWaitForAPassThatWaitsUnlessAPathTakesTheirGradient) {
  const auto description = describe({.layers = 3, .subspace = "up|down"});
  const auto layout = description.layout();
  for (const bool written : {false, true}) {
    const auto schedule = make_schedule(description, layout, test::placement_of(layout, {.gradient = !written}), {});
    const auto idle = idle_priority(schedule);
    for (const auto refit : schedule.refit_task) {
      if (refit == kNone) continue;
      EXPECT_EQ(idle[refit], !written);
    }
  }
}

TEST(Schedule, RefitsCountByHowOftenTheyRun) {
  auto shape = Shape{.subspace = "up", .nonzeros = 4};
  const auto work = [&](std::uint64_t rotate) {
    shape.checks.rotate_every = rotate;
    const auto description = describe(shape);
    const auto layout = description.layout();
    std::uint64_t sum = 0;
    for (const auto& task : make_schedule(description, layout, test::placement_of(layout), {}).tasks) {
      sum += task.op == Op::refit ? task.bytes : 0;
    }
    return sum;
  };
  EXPECT_EQ(work(0), 0U);
  EXPECT_GT(work(10), 0U);
  EXPECT_NEAR(static_cast<double>(work(10)), 2.0 * static_cast<double>(work(20)), 8);
}

TEST(Schedule, AnUntiedEmbeddingHasNoGradientOnThePath) {
  const auto description = describe({.tied = false});
  const state::Layout layout(description.blocks, description.chunk_elements);
  const auto schedule = make_schedule(description, layout, Placement(layout), {});
  for (const auto& task : schedule.tasks) {
    if (task.moves(Lane::write, ObjectKind::gradient)) {
      EXPECT_NE(layout.blocks()[layout.chunks()[task.what.index].block].role, state::BlockRole::embedding);
    }
  }
}

/// The bytes of experts that passes ask for count by the share that is asked for, and no pass waits for them first.
TEST(AskedExperts, CountByTheirShare) {
  const auto whole = test::describe({.layers = 3, .experts = 8}),
             half = test::describe({.layers = 3, .experts = 8, .asked = 0.5});
  const auto make = [](const Description& description) {
    const auto layout = description.layout();
    return make_schedule(description, layout, Placement(layout), {});
  };
  const auto all = make(whole), some = make(half);
  const auto layout = half.layout();
  Bytes experts = 0;
  std::size_t asks = 0;
  for (const auto& chunk : layout.chunks()) experts += chunk.asked < 1 ? weight_bytes(half.rule(), chunk) : 0;
  for (const auto& pass : some.passes) asks += pass.asks.size();
  for (const auto& pass : all.passes) EXPECT_TRUE(pass.asks.empty());
  EXPECT_GT(asks, 2U * 3 * 8 - 1);
  EXPECT_EQ(traffic_of(all)[Lane::read] - traffic_of(some)[Lane::read], experts) << "half of them, in both passes";
  Rates rates{.cores = 2, .forward = 1e-6, .backward = 1e-6};
  rates.paths.push_back({.read = 1e9, .write = 1e9, .mixed = 1e9});
  EXPECT_LT(simulate(some, half, layout, rates, 3, "path").transfer_seconds,
            simulate(all, whole, whole.layout(), rates, 3, "path").transfer_seconds);
}

/// Tasks that have ended when a task begins, by instance: its own, and the one before.
class Ended {
 public:
  Ended(const Schedule& schedule, Index task) {
    for (auto& seen : ended_) seen.assign(schedule.tasks.size(), false);
    add(task, 0);
    while (!open_.empty()) {
      const auto [at, instance] = open_.back();
      open_.pop_back();
      for (const auto& need : schedule.tasks[at].needs) add(need.task, instance + (need.previous ? 1 : 0));
    }
  }

  /// True if all of these have ended.
  [[nodiscard]] bool has(const std::vector<Index>& tasks, std::size_t instance) const {
    return std::ranges::all_of(tasks, [&](Index task) { return ended_[instance][task]; });
  }

 private:
  void add(Index task, std::size_t instance) {
    if (instance >= ended_.size() || ended_[instance][task]) return;  // instances before these have ended
    ended_[instance][task] = true;
    open_.emplace_back(task, instance);
  }

  std::array<std::vector<bool>, 2> ended_;
  std::vector<std::pair<Index, std::size_t>> open_;
};

/// A pass begins without experts that it has not asked for, so nothing may wait for it in their place.
TEST(AskedExperts, LeaveABufferToTheNextStepWhenItsUsersHaveEnded) {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    const auto description = describe({.layers = 1 + static_cast<std::int64_t>(random() % 3),
                                       .tied = round % 2 == 0,
                                       .micro_batches = 1 + random() % 2,
                                       .experts = 4,
                                       .asked = 0.5});
    const auto layout = description.layout();
    auto schedule = make_schedule(description, layout, test::random_placement_of(layout, random), {},
                                  {.gradients = round % 3 > 0}, test::random_saved(layout, random));
    static_cast<void>(lay_out(schedule));
    add_reuse_dependencies(schedule);
    auto late = schedule;  // nothing is asked for before the end of a pass
    for (const auto& pass : late.passes) {
      for (const auto asked : pass.asks) late.tasks[asked].needs.push_back({pass.task, false});
    }
    EXPECT_TRUE(completes(late, 3, random)) << "round " << round;
    for (const auto& buffer : schedule.buffers) {
      if (buffer.whole) continue;
      const bool wraps = buffer.last < buffer.first;
      for (const auto first : buffer.first_tasks) {
        const Ended ended(schedule, first);
        EXPECT_TRUE(ended.has(buffer.first_tasks, 1)) << "round " << round;
        EXPECT_TRUE(ended.has(buffer.earlier_tasks, 1)) << "round " << round;
        EXPECT_TRUE(ended.has(buffer.last_tasks, wraps ? 0 : 1)) << "round " << round;
      }
    }
  }
}

}  // namespace
}  // namespace spillway::plan
