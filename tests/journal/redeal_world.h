// A run that goes on with other numbers of shards, in random order, on paths whose power is cut after every event:
// whatever is left of the old shards, the new ones and run.json, one of the two is whole and has the step.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "spillway/journal/lines.h"
#include "tests/journal/shards_world.h"

namespace spillway::journal::testing {

class RedealWorld {
 public:
  static constexpr std::uint32_t kMostShards = 3;

  explicit RedealWorld(const WorldSetup& setup) : setup_(setup), random_(setup.seed + 200) {}

  /// Runs to the last step; the first thing that was found wrong, or nothing.
  std::string run();
  [[nodiscard]] std::uint64_t events() const { return events_; }
  [[nodiscard]] std::uint64_t redeals() const { return redeals_; }    ///< begun
  [[nodiscard]] std::uint64_t settled() const { return settled_; }    ///< the old volumes were gone
  [[nodiscard]] std::uint64_t restored() const { return restored_; }  ///< the old number went on after all
  [[nodiscard]] std::uint64_t taken_up() const { return taken_up_; }  ///< the new one was there when all were killed

 private:
  using Fate = PowerCutMedia::Fate;
  /// The shards of a line.
  struct Group {
    KeptLine line;
    std::unique_ptr<Ballot> ballot;
    std::vector<std::unique_ptr<World>> shards;
    std::vector<bool> gone;  ///< whose volumes were removed
  };
  using Left = std::map<std::uint32_t, std::vector<std::vector<Remains>>>;  ///< by world and shard

  bool chance(std::uint32_t in) { return random_() % in == 0; }
  Group& group(std::uint32_t world);
  [[nodiscard]] Group& now() { return groups_.at(lines_.now.world); }
  void begin_anew(std::uint32_t world);
  void redeal(const WayOn& way, std::uint32_t world, const std::vector<Recovered>& from);
  void restart();
  bool happen();
  bool settle();
  void cut_after_event();
  [[nodiscard]] Left live() const;
  [[nodiscard]] WayOn look(const Left& left, std::uint32_t world) const;
  std::string check(const Left& left, std::uint32_t world, std::vector<Recovered>* out = nullptr);
  std::string wrong();

  const WorldSetup setup_;
  std::mt19937 random_;
  RunLines lines_;                         ///< run.json
  std::map<std::uint32_t, Group> groups_;  ///< by world, whose volumes have names of their own
  bool any_durable_ = false;
  std::string wrong_;
  std::uint64_t numbers_ = 0, seeds_ = 0;
  std::uint64_t events_ = 0, redeals_ = 0, settled_ = 0, restored_ = 0, taken_up_ = 0;
};

inline std::string RedealWorld::run() {
  begin_anew(1 + random_() % kMostShards);
  const auto unfinished = [](const auto& it) { return !it->finished(); };
  for (std::uint64_t idle = 0; lines_.before || std::ranges::any_of(now().shards, unfinished);) {
    if (chance(lines_.before ? 40 : 90)) {
      restart();
    } else {
      idle = happen() ? 0 : idle + 1;
      if (idle > 2000) return "the run is stuck";
    }
    ++events_;
    for (const auto& it : now().shards) any_durable_ = any_durable_ || it->any_durable();
    if (!wrong().empty()) return wrong();
    cut_after_event();
    if (!wrong().empty()) return wrong();
  }
  return {};
}

inline std::string RedealWorld::wrong() {
  for (const auto& [world, group] : groups_) {
    for (const auto& it : group.shards) {
      if (wrong_.empty()) wrong_ = it->wrong();
    }
    if (wrong_.empty()) wrong_ = group.ballot->wrong;
  }
  return wrong_;
}

/// New volumes in place of those that had the names.
inline RedealWorld::Group& RedealWorld::group(std::uint32_t world) {
  groups_.erase(world);
  Group& out = groups_[world];
  out.ballot = std::make_unique<Ballot>(world);
  out.gone.resize(world);
  for (std::uint32_t shard = 0; shard < world; ++shard) {
    WorldSetup of = setup_;
    of.seed = setup_.seed * 64 + static_cast<std::uint32_t>(++seeds_);
    of.shard = shard;
    of.shards = world;
    of.votes = world > 1 ? &out.ballot->port(shard) : nullptr;
    out.shards.push_back(std::make_unique<World>(of));
  }
  return out;
}

inline void RedealWorld::begin_anew(std::uint32_t world) {
  lines_ = {{world > 1 ? ++numbers_ : 0, world}};
  groups_.clear();
  Group& it = group(world);
  it.line = lines_.now;
  for (const auto& shard : it.shards) shard->begin(it.line.number, {}, nullptr);
}

inline void RedealWorld::redeal(const WayOn& way, std::uint32_t world, const std::vector<Recovered>& from) {
  ++redeals_;
  lines_ = {{world > 1 ? ++numbers_ : 0, world}, way.line};
  std::erase_if(groups_, [&](const auto& it) { return it.first != way.line.world; });
  Group& it = group(world);
  it.line = lines_.now;
  const World& before = *groups_.at(way.line.world).shards.front();
  for (const auto& shard : it.shards) shard->begin_after(it.line.number, before, from.front().newest);
}

/// All processes end, and some number of others begins.
inline void RedealWorld::restart() {
  const std::uint32_t how = random_() % 3;  // all lose their power, some do, none
  for (const auto& it : now().shards) it->end(how == 0 || (how == 1 && chance(2)));
  for (auto& [world, group] : groups_) {
    for (const auto& it : group.shards) it->media().flush();
  }
  const std::uint32_t world = 1 + random_() % kMostShards;
  const WayOn way = look(live(), world);
  std::vector<Recovered> found;
  wrong_ = check(live(), world, &found);
  if (!wrong_.empty()) return;
  if (way.step == kNoStep) return begin_anew(world);
  if (way.kind == WayOn::Kind::redeal) return redeal(way, world, found);
  const bool half = lines_.before.has_value();
  if (half && way.line == lines_.now) ++taken_up_;
  if (half && way.line != lines_.now) {
    ++restored_;
    lines_ = {way.line};
    std::erase_if(groups_, [&](const auto& it) { return it.first != world; });
  }
  Group& it = now();
  for (std::size_t i = 0; i < it.shards.size(); ++i) it.shards[i]->begin(it.line.number, found[i], nullptr);
  for (const auto& shard : it.shards) shard->hold(lines_.before.has_value());
}

/// One event of the processes that are there.
inline bool RedealWorld::happen() {
  if (lines_.before && chance(12) && settle()) return true;
  Group& it = now();
  if (chance(2) && it.ballot->deliver(random_)) return true;
  return it.shards[random_() % it.shards.size()]->move();
}

/// Once the step is durable on all new shards an old volume goes, or, when none is left, its line from run.json.
inline bool RedealWorld::settle() {
  if (!std::ranges::all_of(now().shards, [](const auto& it) { return it->any_durable(); })) return false;
  const auto old = groups_.find(lines_.before->world);
  if (old != groups_.end()) {
    auto& gone = old->second.gone;
    const auto next = std::ranges::find(gone, false);
    if (next != gone.end()) return *next = true;
    groups_.erase(old);
  }
  lines_.before.reset();
  ++settled_;
  for (const auto& it : now().shards) it->hold(false);
  return true;
}

// ---- what is left

inline RedealWorld::Left RedealWorld::live() const {
  Left out;
  for (const auto& [world, group] : groups_) {
    for (const auto& it : group.shards) out[world].push_back(it->live());
  }
  return out;
}

inline void RedealWorld::cut_after_event() {
  Left left;
  for (const auto& [world, group] : groups_) {
    for (const auto& it : group.shards) {
      it->media().cut(std::array{Fate::nothing, Fate::everything, Fate::any}[random_() % 3],
                      left[world].emplace_back());
    }
  }
  wrong_ = check(left, 1 + random_() % kMostShards);
}

inline WayOn RedealWorld::look(const Left& left, std::uint32_t world) const {
  std::vector<FoundShard> found;
  for (const auto& [of, group] : groups_) {
    for (std::uint32_t shard = 0; shard < of; ++shard) {
      if (group.gone[shard]) continue;
      RemainsMedia media(left.at(of)[shard]);
      found.push_back({of, shard, newest_step(group.shards[shard]->spec(), media)});
    }
  }
  return way_on(lines_, found, world);
}

/// Whether so many processes can go on, and from a state that the run may have.
inline std::string RedealWorld::check(const Left& left, std::uint32_t world, std::vector<Recovered>* out) {
  try {
    const WayOn way = look(left, world);
    if (way.kind == WayOn::Kind::missing) return "shards are missing";
    if (way.step == kNoStep) return any_durable_ ? "nothing is gone on from" : "";
    const Group& from = groups_.at(way.line.world);
    std::vector<Recovered> found(from.shards.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto& it = from.shards[i];
      std::string wrong = it->check(left.at(way.line.world)[i], &found[i], way.step);
      if (wrong.empty()) wrong = it->check_allowed(found[i].found, found[i].newest);
      const bool same = found[i].found && std::cmp_equal(found[i].newest.step, way.step) &&
                        World::line_of(found[i].newest) == World::line_of(found[0].newest);
      if (wrong.empty() && !same) wrong = "it has another step than the others";
      if (!wrong.empty()) return text("shard ", i, " of ", found.size(), ", for ", world, ": ", wrong);
    }
    if (out != nullptr) *out = std::move(found);
  } catch (const Error& error) {
    return text("refused: ", error.what());
  }
  return {};
}

}  // namespace spillway::journal::testing
