// The shards of a run, each with a journal and paths of its own, that vote for every step: whatever a cut of any of
// them leaves, recovery by the minimum brings all of them to one step, and none that was told durable is lost.
#pragma once

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/journal/journal_world.h"

namespace spillway::journal::testing {

/// The votes of all shards. Answers come when they are delivered, to one shard at a time.
class Ballot {
 public:
  explicit Ballot(std::uint32_t shards) : boxes_(shards) {
    for (Box& box : boxes_) box.ballot = this;
  }

  [[nodiscard]] VotePort& port(std::uint32_t shard) { return boxes_[shard]; }
  /// Answers one shard, any; false: there is no answer that has not been delivered.
  bool deliver(std::mt19937& random) {
    std::vector<Box*> open;
    for (Box& box : boxes_) {
      if (box.answer) open.push_back(&box);
    }
    if (open.empty()) return false;
    Box& box = *open[random() % open.size()];
    const auto done = std::exchange(box.done, nullptr);
    done(*std::exchange(box.answer, std::nullopt), nullptr);
    return true;
  }
  std::string wrong;

 private:
  struct Box : VotePort {
    void vote(std::int64_t of, Done when) override {
      if (done) ballot->wrong = "a shard votes twice at a time";
      step = of;
      done = std::move(when);
      ballot->count();
    }
    void cancel() noexcept override {
      answer.reset();
      if (const auto when = std::exchange(done, nullptr)) when(kNoStep, std::make_exception_ptr(1));
    }
    Ballot* ballot = nullptr;
    std::int64_t step = kNoStep;
    Done done;  ///< null: it has no vote under way
    std::optional<std::int64_t> answer;
  };
  void count() {
    std::int64_t minimum = std::numeric_limits<std::int64_t>::max();
    for (const Box& box : boxes_) {
      if (!box.done || box.answer) return;
      minimum = std::min(minimum, box.step);
    }
    for (Box& box : boxes_) box.answer = minimum;
  }

  std::vector<Box> boxes_;
};

class ShardsWorld {
 public:
  ShardsWorld(const WorldSetup& setup, std::uint32_t shards);

  /// Runs to the last step; the first thing that was found wrong, or nothing.
  std::string run();
  [[nodiscard]] std::uint64_t events() const { return events_; }
  [[nodiscard]] std::uint64_t restarts() const { return restarts_; }
  [[nodiscard]] std::uint64_t cut_off() const { return cut_off_; }          ///< steps of one shard that did not count
  [[nodiscard]] std::uint64_t went_back() const { return went_back_; }      ///< to a checkpoint
  [[nodiscard]] std::uint64_t half_opened() const { return half_opened_; }  ///< restarts with shards on two lines

 private:
  using Left = std::vector<std::vector<Remains>>;  ///< by shard
  using Fate = PowerCutMedia::Fate;
  /// What run.json says: the line, and the checkpoint that it began with, one manifest for each shard; none: anew.
  struct Line {
    std::uint64_t number = 1;
    std::vector<Manifest> origin;
  };
  /// What the shards would go on from.
  struct Standing {
    std::vector<bool> on_line;
    std::int64_t minimum = std::numeric_limits<std::int64_t>::max();
    std::vector<Recovered> recovered;
    bool all = true;  ///< they are on the line
  };

  bool chance(std::uint32_t in) { return random_() % in == 0; }
  bool happen();
  void restart();
  void begin(const Standing& from);
  [[nodiscard]] std::optional<std::vector<Manifest>> common_checkpoint();
  void cut_after_event();
  std::string check(const Left& left, Standing* out = nullptr);
  std::string look(const Left& left, Standing& out);
  std::string check_state(const Standing& at);
  std::string check_origin(const Standing& at);
  [[nodiscard]] Left live() const;

  const WorldSetup setup_;
  std::mt19937 random_;
  Ballot ballot_;
  std::vector<std::unique_ptr<World>> shards_;
  Line line_;
  std::uint64_t events_ = 0, restarts_ = 0, cut_off_ = 0, went_back_ = 0, half_opened_ = 0, lines_ = 1;
};

inline ShardsWorld::ShardsWorld(const WorldSetup& setup, std::uint32_t shards)
    : setup_(setup), random_(setup.seed + 100), ballot_(shards) {
  for (std::uint32_t shard = 0; shard < shards; ++shard) {
    WorldSetup of = setup;
    of.seed = setup.seed * 16 + shard;
    of.shard = shard;
    of.shards = shards;
    of.votes = &ballot_.port(shard);
    shards_.push_back(std::make_unique<World>(of));
  }
}

inline std::string ShardsWorld::run() {
  Standing nothing;
  nothing.recovered.resize(shards_.size());
  nothing.minimum = kNoStep;
  begin(nothing);
  const auto unfinished = [](const auto& it) { return !it->finished(); };
  for (std::uint64_t idle = 0; std::ranges::any_of(shards_, unfinished);) {
    if (setup_.restarts && chance(120)) {
      restart();
    } else {
      idle = happen() ? 0 : idle + 1;
      if (idle > 1000) return "the run is stuck";
    }
    ++events_;
    for (const auto& it : shards_) {
      if (!it->wrong().empty()) return it->wrong();
    }
    if (!ballot_.wrong.empty()) return ballot_.wrong;
    cut_after_event();
    if (!ballot_.wrong.empty()) return ballot_.wrong;
  }
  for (const auto& it : shards_) {
    it->check_no_leak(static_cast<std::int64_t>(setup_.steps));
    if (!it->wrong().empty()) return it->wrong();
  }
  return check(live());
}

/// One event, of any shard or of the network.
inline bool ShardsWorld::happen() {
  if (chance(2) && ballot_.deliver(random_)) return true;
  return shards_[random_() % shards_.size()]->move();
}

inline ShardsWorld::Left ShardsWorld::live() const {
  Left out;
  for (const auto& it : shards_) out.push_back(it->live());
  return out;
}

/// The power of one shard, of some or of all; of the others the processes end.
inline void ShardsWorld::cut_after_event() {
  if (!setup_.cuts) return;
  Left left(shards_.size());
  const std::size_t one = random_() % shards_.size();
  for (std::uint32_t round = 0; round < 3 && ballot_.wrong.empty(); ++round) {
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      const Fate any = std::array{Fate::nothing, Fate::everything, Fate::any}[random_() % 3];
      const Fate fate = round == 0 ? any : (i == one) == (round == 1) ? Fate::nothing : Fate::everything;
      shards_[i]->media().cut(fate, left[i]);
    }
    ballot_.wrong = check(left);
  }
}

// ---- what is left, and where the shards go on

/// As processes do that know each other, and run.json: which shards are on its line, and the step that all have.
inline std::string ShardsWorld::look(const Left& left, Standing& out) {
  out.on_line.resize(shards_.size());
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    RemainsMedia media(left[i]);
    const NewestStep newest = newest_step(shards_[i]->spec(), media);
    out.on_line[i] = newest.line == line_.number;
    out.all = out.all && out.on_line[i];
    out.minimum = std::min(out.minimum, newest.step);
  }
  if (!out.all) out.minimum = line_.origin.empty() ? kNoStep : std::int64_t(line_.origin[0].commit.step);
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const bool back = !out.on_line[i] && !line_.origin.empty();
    const std::int64_t at_most = back ? std::numeric_limits<std::int64_t>::max() : out.minimum;
    const std::string wrong = shards_[i]->check(left[i], &out.recovered.emplace_back(), at_most);
    if (!wrong.empty()) return text("shard ", i, ": ", wrong);
  }
  return {};
}

inline std::string ShardsWorld::check(const Left& left, Standing* out) {
  Standing at;
  try {
    std::string wrong = look(left, at);
    if (wrong.empty()) wrong = at.all ? check_state(at) : check_origin(at);
    if (!wrong.empty()) return wrong;
  } catch (const Error& error) {
    return text("refused: ", error.what());
  }
  if (out != nullptr) *out = std::move(at);
  return {};
}

/// All have one step, and each of them may have that one.
inline std::string ShardsWorld::check_state(const Standing& at) {
  const Recovered& first = at.recovered.front();
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const Recovered& r = at.recovered[i];
    const bool same =
        r.found == first.found &&
        (!r.found || (r.newest.step == first.newest.step && World::line_of(r.newest) == World::line_of(first.newest)));
    if (!same) return text("shard ", i, " has another step than shard 0");
    const std::string wrong = shards_[i]->check_allowed(r.found, r.newest);
    if (!wrong.empty()) return text("shard ", i, ": ", wrong);
  }
  return {};
}

/// Some have begun the line, of which nothing but its beginning is there.
inline std::string ShardsWorld::check_origin(const Standing& at) {
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const bool anew = line_.origin.empty();
    const std::string wrong = shards_[i]->check_allowed(!anew, anew ? Commit{} : line_.origin[i].commit);
    if (!wrong.empty()) return text("shard ", i, ", at the beginning of a line: ", wrong);
    if (!at.on_line[i]) continue;
    const Recovered& r = at.recovered[i];
    if (r.cut_off) return text("shard ", i, " has made step ", *r.cut_off, " while others had not begun");
    if (r.found == anew) return text("shard ", i, " does not have what its line began with");
  }
  return {};
}

// ---- the processes

inline void ShardsWorld::restart() {
  ++restarts_;
  const std::uint32_t how = random_() % 3;  // all lose their power, some do, none
  for (const auto& it : shards_) {
    it->end(how == 0 || (how == 1 && chance(2)));
    it->media().flush();
  }
  Standing at;
  ballot_.wrong = check(live(), &at);
  if (!ballot_.wrong.empty()) return;
  for (const Recovered& r : at.recovered) cut_off_ += r.cut_off && *r.cut_off > std::uint64_t(at.minimum) ? 1 : 0;
  half_opened_ += at.all ? 0 : 1;
  auto checkpoint = at.all && at.minimum != kNoStep && chance(3) ? common_checkpoint() : std::nullopt;
  if (checkpoint) {
    ++went_back_;
    line_ = {++lines_, std::move(*checkpoint)};  // before any shard begins it
    at.on_line.assign(shards_.size(), false);
    at.all = false;
  }
  begin(at);
}

inline void ShardsWorld::begin(const Standing& from) {
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const bool back = !from.all && !line_.origin.empty() && !from.on_line[i];
    shards_[i]->begin(line_.number, from.recovered[i], back ? &line_.origin[i] : nullptr);
  }
}

/// One that every shard still has.
inline std::optional<std::vector<Manifest>> ShardsWorld::common_checkpoint() {
  for (const Manifest& of_first : shards_.front()->checkpoints()) {
    std::vector<Manifest> out;
    for (const auto& it : shards_) {
      for (const Manifest& manifest : it->checkpoints()) {
        const bool same = manifest.commit.step == of_first.commit.step &&
                          World::line_of(manifest.commit) == World::line_of(of_first.commit);
        if (!same) continue;
        out.push_back(manifest);
        break;
      }
    }
    if (out.size() == shards_.size()) return out;
  }
  return std::nullopt;
}

}  // namespace spillway::journal::testing
