// A run that does everything a run may do, in random order, on paths whose power is cut after every event: whatever is
// left has to be recoverable, and to be what the run that was never interrupted had.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "spillway/journal/journal.h"
#include "spillway/journal/recovery.h"
#include "tests/journal/power_cut_media.h"

namespace spillway::journal::testing {

struct WorldSetup {
  std::uint32_t seed = 0;
  std::uint32_t paths = 1;
  std::uint32_t chunks = 4;
  std::uint64_t steps = 10;
  Durability durability = Durability::step;
  bool lying_syncs = false;
  std::uint64_t path_fails_at = 0;  ///< event; 0: never
  bool restarts = true;
  bool cuts = true;                     ///< after every event
  bool constant = false;                ///< the first chunk never changes
  std::uint32_t shard = 0, shards = 1;  ///< chunk c is that of shard c modulo shards
  VotePort* votes = nullptr;            ///< of several shards, whose worlds somebody else runs: shards_world.h
};

class World : public JournalListener {
 public:
  explicit World(const WorldSetup& setup);
  ~World() override;

  /// Runs to the last step; the first thing that was found wrong, or nothing.
  std::string run();
  [[nodiscard]] std::uint64_t events() const { return events_; }
  [[nodiscard]] std::uint64_t restarts() const { return restarts_; }
  [[nodiscard]] std::uint64_t checkpoints_made() const { return checkpoints_made_; }
  [[nodiscard]] const JournalSpec& spec() const { return spec_; }
  /// What the volumes hold now.
  [[nodiscard]] const std::vector<Remains>& live() const { return media_->live(); }
  [[nodiscard]] const std::vector<Manifest>& checkpoints() const { return checkpoints_; }

  /// Recovers, and compares with the run that was never interrupted. Empty: right. "refused: ..." when recovery, or
  /// reading what it found, says that something is damaged.
  std::string check(const std::vector<Remains>& remains, Recovered* out = nullptr, std::int64_t at_most = kAnyStep);
  /// The values alone: any step will do.
  std::string check_any_step(const std::vector<Remains>& remains);

  // Where there are several shards:

  /// The process is gone; with `cut` the power is, too.
  void end(bool cut);
  /// Another begins in its place, after `recovered`: anew where nothing was found, or in `back`; null: it goes on.
  void begin(std::uint64_t line_number, const Recovered& recovered, const Manifest* back);
  /// Another number of shards goes on with the state that `before`, one of the shards until now, had at a commit: none
  /// of it is on these paths yet, and no step is made before hold(false).
  void begin_after(std::uint64_t line_number, const World& before, const Commit& from);
  void hold(bool holds) { held_ = holds; }
  [[nodiscard]] bool any_durable() const { return any_durable_; }
  /// Something happens, if anything can; whether it did.
  bool move();
  /// What is wrong with what has happened.
  [[nodiscard]] std::string wrong() const { return wrong_.empty() ? media_->wrong : wrong_; }
  [[nodiscard]] bool finished() const { return step_ == setup_.steps && settled(); }
  [[nodiscard]] PowerCutMedia& media() { return *media_; }
  /// Whether a cut may bring that state back.
  [[nodiscard]] std::string check_allowed(bool found, const Commit& newest) const;
  void check_no_leak(std::int64_t at_most = kAnyStep);
  [[nodiscard]] static std::uint32_t line_of(const Commit& commit) {
    std::uint32_t line = 0;
    std::memcpy(&line, commit.payload.data(), sizeof line);
    return line;
  }

  void opened() override;
  void durable(std::uint64_t step) override;
  void released(std::span<const Piece> pieces) override;
  void path_failed(std::uint32_t path, std::exception_ptr error) override;
  void failed(std::exception_ptr error) override;

 private:
  static constexpr std::uint32_t kPieces = 96;  ///< over all paths
  static constexpr std::int64_t kAnyStep = std::numeric_limits<std::int64_t>::max();

  struct Object {
    ObjectKind kind;
    std::uint32_t id;
    std::uint64_t version;
    std::vector<Piece> pieces;
    std::size_t open;
  };
  /// A state that a cut may bring back.
  struct Allowed {
    std::uint32_t line;
    std::uint64_t from, to;
  };

  bool chance(std::uint32_t in) { return random_() % in == 0; }
  void event();
  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  void start_fresh(const Recovered& before, std::uint32_t from = 0, std::uint64_t step = 0);
  void reset(std::uint64_t line_number, const Recovered& recovered);
  void start_again();
  void begin_line(std::uint32_t from, std::uint64_t step);
  [[nodiscard]] bool settled() const;
  void start(const Recovered& recovered, const Manifest* back);
  void begin_step();
  bool advance();
  bool write_object(ObjectKind kind, std::uint32_t id, std::uint64_t version);
  void object_written(const Object& object, Journal& journal);
  void request_commit();
  void start_updates();
  void checkpoint();
  void forget_checkpoint();
  void find_free(const std::vector<storage::Place>& used);

  [[nodiscard]] std::uint32_t period(std::uint32_t chunk) const { return spec_.chunks[chunk].period; }
  [[nodiscard]] bool constant(std::uint32_t chunk) const { return spec_.chunks[chunk].constant; }
  [[nodiscard]] bool elsewhere(std::uint32_t chunk) const { return spec_.chunks[chunk].elsewhere; }
  [[nodiscard]] Hash gradient_of(std::uint32_t line, std::uint32_t gradient, std::uint64_t step) const;
  [[nodiscard]] Hash rate_of(std::uint32_t line, std::uint64_t step) const;
  /// What that was when the commit was made.
  [[nodiscard]] static Hash rate_of(const Commit& commit);
  [[nodiscard]] bool skipped(std::uint32_t line, std::uint64_t step) const;
  [[nodiscard]] bool uses(std::uint32_t line, std::uint32_t gradient, std::uint64_t step) const;
  [[nodiscard]] Hash update(Hash value, std::uint32_t line, std::uint32_t chunk, std::uint64_t step, Hash rate) const;
  [[nodiscard]] Hash truth(std::uint32_t line, std::uint32_t chunk, std::uint64_t step);
  [[nodiscard]] std::uint32_t line_at(std::uint32_t line, std::uint64_t step) const;
  std::string check_pieces(const std::vector<Piece>& pieces, Hash value, const std::vector<Remains>& remains) const;
  std::string check_values(const Recovered& r, const std::vector<Remains>& remains);

  const WorldSetup setup_;
  JournalSpec spec_;
  std::mt19937 random_;
  std::unique_ptr<PowerCutMedia> media_;
  std::unique_ptr<Journal> journal_;
  std::vector<Remains> remains_;  ///< of the last cut
  std::string wrong_;
  std::uint64_t events_ = 0, restarts_ = 0, checkpoints_made_ = 0;
  std::vector<Manifest> checkpoints_;
  std::vector<Allowed> allowed_;
  bool nothing_allowed_ = true;
  std::map<std::uint32_t, std::pair<std::uint32_t, std::uint64_t>> origins_;  ///< line -> line and step it came from
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>, Hash> truths_;
  std::uint32_t lines_ = 0;

  // What follows belongs to the process.
  std::uint32_t line_ = 0;
  std::uint64_t start_ = 0;  ///< the step it began with
  std::uint64_t step_ = 0;   ///< under way, or the last one requested
  std::uint64_t durable_ = 0;
  Allowed start_state_{};
  bool fresh_ = true;
  bool held_ = false, opened_ = false, any_durable_ = false, committed_ = true, making_checkpoint_ = false,
       path_lost_ = false;
  std::uint64_t applied_ = 0;
  std::vector<std::uint32_t> gradients_;                            ///< to be written
  std::vector<std::pair<std::uint32_t, std::uint64_t>> snapshots_;  ///< to be written, in order
  std::vector<std::uint64_t> newest_snapshot_;
  std::vector<bool> snapshot_under_way_, gradient_under_way_;
  std::vector<storage::Place> free_;
  std::set<storage::Place> taken_;
};

// ---- the run that was never interrupted

inline std::uint32_t World::line_at(std::uint32_t line, std::uint64_t step) const {
  const auto origin = origins_.find(line);
  return origin != origins_.end() && step <= origin->second.second ? line_at(origin->second.first, step) : line;
}
inline Hash World::gradient_of(std::uint32_t line, std::uint32_t gradient, std::uint64_t step) const {
  return mix(mix(line_at(line, step) + 77, gradient), step);
}
inline Hash World::rate_of(const Commit& commit) {
  Hash out = 0;
  std::memcpy(&out, commit.update.data(), sizeof out);
  return out;
}

inline Hash World::rate_of(std::uint32_t line, std::uint64_t step) const {
  return mix(line_at(line, step) * 31 + 5, step) >> 12;
}
inline bool World::skipped(std::uint32_t line, std::uint64_t step) const {
  return mix(rate_of(line, step), 3) % 5 == 0;
}
inline bool World::uses(std::uint32_t line, std::uint32_t gradient, std::uint64_t step) const {
  if (journal::elsewhere(spec_, spec_.gradients[gradient])) return false;
  return gradient < setup_.chunks || mix(rate_of(line, step), 4) % 2 == 0;
}

inline Hash World::update(Hash value, std::uint32_t line, std::uint32_t chunk, std::uint64_t step, Hash rate) const {
  for (std::uint32_t g = 0; g < spec_.gradients.size(); ++g) {
    const GradientSpec& spec = spec_.gradients[g];
    const bool feeds = spec.first_chunk <= chunk && chunk < spec.first_chunk + spec.chunks;
    if (feeds && uses(line, g, step)) value = mix(value, gradient_of(line, g, step));
  }
  return mix(value, rate);
}

inline Hash World::truth(std::uint32_t line, std::uint32_t chunk, std::uint64_t step) {
  if (step == 0 || constant(chunk)) return mix(1, chunk);
  line = line_at(line, step);
  const auto known = truths_.find({line, chunk, step});
  if (known != truths_.end()) return known->second;
  const Hash before = truth(line, chunk, step - 1);
  const Hash value = skipped(line, step) ? before : update(before, line, chunk, step, rate_of(line, step));
  return truths_[{line, chunk, step}] = value;
}

// ---- what a cut leaves

inline std::string World::check_pieces(const std::vector<Piece>& pieces, Hash value,
                                       const std::vector<Remains>& remains) const {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const storage::Place& place = pieces[i].place;
    if (remains[place.path].pieces[place.piece] != pieces[i].checksum) return "refused: a piece is not what it was";
    if (pieces[i].checksum != mix(value, i)) return "an object has the pieces of another one";
  }
  return {};
}

inline std::string World::check_values(const Recovered& r, const std::vector<Remains>& remains) {
  const std::uint32_t line = line_of(r.newest);
  std::map<std::pair<std::uint32_t, std::uint64_t>, const StoredObject*> gradients;
  for (const RecoveredObject& g : r.gradients) gradients[{g.stored.object, g.stored.version}] = &g.stored;
  std::string wrong;
  for (const auto& [which, stored] : gradients) {
    if (wrong.empty()) wrong = check_pieces(stored->pieces, gradient_of(line, which.first, which.second), remains);
  }
  for (std::uint32_t chunk = 0; chunk < setup_.chunks && wrong.empty(); ++chunk) {
    if (elsewhere(chunk)) continue;
    const StoredObject& snapshot = r.snapshots[chunk].stored;
    Hash value = truth(line, chunk, snapshot.version);
    wrong = check_pieces(snapshot.pieces, value, remains);
    for (const RecoveredCommit& c : r.commits) {
      const std::uint64_t step = c.commit.step;
      if (step <= snapshot.version || constant(chunk)) continue;
      for (std::uint32_t g = 0; g < spec_.gradients.size(); ++g) {
        const GradientSpec& spec = spec_.gradients[g];
        const bool feeds = spec.first_chunk <= chunk && chunk < spec.first_chunk + spec.chunks;
        if (feeds && uses(line, g, step) && !gradients.contains({g, step})) wrong = "a gradient was not recovered";
      }
      value = update(value, line, chunk, step, rate_of(c.commit));
    }
    if (wrong.empty() && value != truth(line, chunk, r.newest.step)) wrong = "a chunk has another value";
  }
  return wrong;
}

inline std::string World::check_allowed(bool found, const Commit& newest) const {
  if (!found) return nothing_allowed_ ? "" : "nothing was recovered";
  const std::uint32_t line = line_of(newest);
  for (const Allowed& a : allowed_) {
    if (a.line == line && a.from <= newest.step && newest.step <= a.to) return {};
  }
  return text("step ", newest.step, " of line ", line, " came back");
}

inline std::string World::check(const std::vector<Remains>& remains, Recovered* out, std::int64_t at_most) {
  RemainsMedia media(remains);
  Recovered r;
  try {
    r = recover(spec_, media, {.name = {}, .pinned = checkpoints_, .at_most = at_most});
  } catch (const Error& error) {
    return text("refused: ", error.what());
  }
  std::string wrong = setup_.shards == 1 ? check_allowed(r.found, r.newest) : "";
  if (wrong.empty() && r.found) wrong = check_values(r, remains);
  for (const Manifest& manifest : checkpoints_) {
    for (std::uint32_t chunk = 0; chunk < setup_.chunks && wrong.empty(); ++chunk) {
      if (elsewhere(chunk)) continue;
      const StoredObject& snapshot = manifest.snapshots[chunk];
      const Hash value = truth(line_of(manifest.commit), chunk, manifest.commit.step);
      wrong = check_pieces(snapshot.pieces, value, remains);
      if (!wrong.empty()) wrong = "a checkpoint: " + wrong;
    }
  }
  if (out != nullptr) *out = std::move(r);
  return wrong;
}

inline std::string World::check_any_step(const std::vector<Remains>& remains) {
  RemainsMedia media(remains);
  try {
    const Recovered r = recover(spec_, media);
    if (!r.found) return "refused: nothing is durable";
    return check_values(r, remains);
  } catch (const Error& error) {
    return text("refused: ", error.what());
  }
}

inline void World::event() {
  ++events_;
  if (events_ == setup_.path_fails_at) media_->bad_path = 0;
  using Fate = PowerCutMedia::Fate;
  for (const Fate fate : {Fate::nothing, Fate::everything, Fate::any, Fate::any}) {
    if (!wrong_.empty() || !setup_.cuts) return;
    media_->cut(fate, remains_);
    wrong_ = check(remains_);
  }
  if (wrong_.empty()) wrong_ = media_->wrong;
}

// ---- the run

inline World::World(const WorldSetup& setup) : setup_(setup), random_(setup.seed) {
  spec_.run = "a run";
  spec_.paths = setup.paths;
  spec_.durability = setup.durability;
  spec_.payload = 3000;
  spec_.rank = setup.shard;
  spec_.world = setup.shards;
  for (std::uint32_t c = 0; c < setup.chunks; ++c) {
    const bool constant = setup.constant && c == 0;
    spec_.chunks.push_back({2, c % 3 == 2 ? 3u : 1u, constant, c % setup.shards != setup.shard});
    spec_.gradients.push_back({1, constant ? c + 1 : c, 1});
  }
  spec_.gradients.push_back({2, 1, 2});  // the rows of an embedding of two chunks, one of them resident
  const MetadataLayout layout(spec_);
  media_ = std::make_unique<PowerCutMedia>(setup.paths, layout.used(), kPieces / setup.paths, setup.seed + 1);
  media_->lying_syncs = setup.lying_syncs;
}

inline World::~World() {
  if (journal_) journal_->stop();
  media_->kill();
}

inline std::string World::run() {
  start_again();
  std::uint64_t idle = 0;
  while (wrong_.empty() && !(step_ == setup_.steps && settled())) {
    if (setup_.restarts && chance(150)) {
      start_again();
      continue;
    }
    idle = move() || !media_->idle() ? 0 : idle + 1;
    if (idle > 100) fail("the run is stuck");
    event();
  }
  if (wrong_.empty()) check_no_leak();
  return wrong_;
}

inline bool World::move() {
  const bool act = media_->idle() || chance(3);
  if (act && advance()) return true;
  if (media_->idle()) return false;
  media_->complete_one();
  return true;
}

inline bool World::settled() const {
  const bool all = setup_.durability == Durability::step ? any_durable_ && durable_ == step_ : true;
  return committed_ && snapshots_.empty() && media_->idle() && all && !making_checkpoint_;
}

inline void World::opened() {
  opened_ = true;
  if (fresh_) {
    allowed_ = {{line_, 0, ~std::uint64_t{0}}};
    nothing_allowed_ = true;
  } else {
    allowed_ = {start_state_, {line_, start_ + 1, ~std::uint64_t{0}}};
    nothing_allowed_ = false;
  }
}

inline void World::durable(std::uint64_t step) {
  if (any_durable_ && step < durable_) fail("durable steps go back");
  any_durable_ = true;
  durable_ = step;
  if (fresh_ || step > start_) allowed_ = {{line_, step, ~std::uint64_t{0}}};
  if (fresh_) nothing_allowed_ = false;
}

inline void World::released(std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    if (taken_.erase(piece.place) == 0) fail("a place is released that is not taken");
    free_.push_back(piece.place);
  }
}

inline void World::path_failed(std::uint32_t path, std::exception_ptr) {
  path_lost_ = true;
  std::erase_if(free_, [&](const storage::Place& place) { return place.path == path; });
}
inline void World::failed(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    fail(text("the journal failed: ", e.what()));
  }
}

/// A process begins: the first, or after the end of another.
inline void World::start_again() {
  if (journal_) end(chance(2));
  Recovered r;
  const std::string wrong = check(media_->live(), &r);
  if (!wrong.empty()) return fail(wrong);
  const bool back = !checkpoints_.empty() && (!r.found || chance(3));
  const Manifest manifest = back ? checkpoints_[random_() % checkpoints_.size()] : Manifest{};
  begin(0, r, back ? &manifest : nullptr);
}

inline void World::end(bool cut) {
  ++restarts_;
  journal_->stop();
  media_->cut(PowerCutMedia::Fate::any, remains_);
  media_->kill();
  if (cut) media_->become(remains_);
  journal_.reset();
}

inline void World::begin(std::uint64_t line_number, const Recovered& recovered, const Manifest* back) {
  reset(line_number, recovered);
  recovered.found || back != nullptr ? start(recovered, back) : start_fresh(recovered);
}

inline void World::begin_after(std::uint64_t line_number, const World& before, const Commit& from) {
  origins_ = before.origins_;
  lines_ = before.lines_;
  reset(line_number, {});
  held_ = true;
  start_fresh({}, line_of(from), from.step);
}

inline void World::reset(std::uint64_t line_number, const Recovered& recovered) {
  spec_.line = line_number;
  gradients_.clear();
  snapshots_.clear();
  held_ = opened_ = any_durable_ = making_checkpoint_ = false;
  committed_ = true;
  newest_snapshot_.assign(setup_.chunks, 0);
  snapshot_under_way_.assign(setup_.chunks, false);
  gradient_under_way_.assign(spec_.gradients.size(), false);
  find_free(recovered.places);
  journal_ = std::make_unique<Journal>(spec_, *media_, *this, setup_.votes);
  for (const Manifest& manifest : checkpoints_) journal_->pin(manifest);
}

inline void World::begin_line(std::uint32_t from, std::uint64_t step) {
  line_ = ++lines_;
  origins_[line_] = {from, step};
  start_ = step_ = step;
}

inline void World::start_fresh(const Recovered& before, std::uint32_t from, std::uint64_t step) {
  fresh_ = true;
  begin_line(from, step);
  applied_ = step;
  committed_ = false;
  newest_snapshot_.assign(setup_.chunks, step);
  for (std::uint32_t c = 0; c < setup_.chunks; ++c) {
    if (!elsewhere(c)) snapshots_.emplace_back(c, step);
  }
  journal_->open_fresh(before);
}

inline void World::start(const Recovered& recovered, const Manifest* back) {
  fresh_ = false;
  const Commit& from = back != nullptr ? back->commit : recovered.newest;
  start_state_ = {line_of(from), from.step, from.step};
  begin_line(start_state_.line, from.step);
  applied_ = from.applied();
  allowed_.push_back(start_state_);
  for (std::uint32_t c = 0; c < setup_.chunks; ++c) {
    if (elsewhere(c)) continue;
    newest_snapshot_[c] = back != nullptr ? back->snapshots[c].version : recovered.snapshots[c].stored.version;
    // A chunk that was replayed may have its snapshot written at once; one that is a period behind must, or the slots
    // of its gradients would not do for the next step.
    const bool behind = newest_snapshot_[c] < applied_ && !constant(c);
    if (!behind || (applied_ - newest_snapshot_[c] < period(c) && chance(2))) continue;
    snapshots_.emplace_back(c, step_);
    newest_snapshot_[c] = step_;
  }
  if (back != nullptr) {
    taken_.clear();
    find_free(recovered.places);
    journal_->open_at(*back, recovered);
  } else {
    journal_->open_resumed(recovered);
  }
}

inline void World::find_free(const std::vector<storage::Place>& used) {
  free_.clear();
  taken_.clear();
  taken_.insert(used.begin(), used.end());
  for (std::uint32_t path = 0; path < setup_.paths; ++path) {
    for (std::uint32_t piece = 0; piece < kPieces / setup_.paths; ++piece) {
      if (!taken_.contains({path, piece}) && media_->bad_path != path) free_.push_back({path, piece});
    }
  }
}

inline bool World::write_object(ObjectKind kind, std::uint32_t id, std::uint64_t version) {
  const std::size_t count = kind == ObjectKind::snapshot ? spec_.chunks[id].pieces : spec_.gradients[id].pieces;
  if (free_.size() < count) {
    journal_->hurry();
    return false;
  }
  const Hash value = kind == ObjectKind::snapshot ? truth(line_, id, version) : gradient_of(line_, id, version);
  auto object = std::make_shared<Object>(Object{kind, id, version, {}, count});
  for (std::size_t i = 0; i < count; ++i) {
    // Places that became free last are the likeliest: what was released too early is soon written over.
    const std::size_t at = chance(3) ? random_() % free_.size() : free_.size() - 1;
    object->pieces.push_back({free_[at], 4096, std::uint32_t(i), mix(value, i)});
    taken_.insert(free_[at]);
    free_.erase(free_.begin() + std::ptrdiff_t(at));
  }
  const std::vector<Piece> pieces = object->pieces;
  for (const Piece& piece : pieces) {
    media_->write_piece(piece.place, piece.checksum, [this, object, journal = journal_.get()](std::exception_ptr) {
      if (--object->open == 0) object_written(*object, *journal);
    });
  }
  return true;
}

inline void World::object_written(const Object& object, Journal& journal) {
  if (object.kind == ObjectKind::gradient) {
    gradient_under_way_[object.id] = false;
    return journal.gradient_written(object.id, object.version, object.pieces);
  }
  snapshot_under_way_[object.id] = false;
  journal.snapshot_written(object.id, object.version, object.pieces);
}

/// Does one thing of the run, if there is one to do.
inline bool World::advance() {
  if (!opened_) return false;
  if (any_durable_ && chance(25)) journal_->hurry();
  if (!checkpoints_.empty() && chance(40)) forget_checkpoint();
  const auto snapshot =
      std::find_if(snapshots_.begin(), snapshots_.end(), [&](const auto& i) { return !snapshot_under_way_[i.first]; });
  if (snapshot != snapshots_.end() && chance(2)) {
    const auto [chunk, version] = *snapshot;
    if (!write_object(ObjectKind::snapshot, chunk, version)) return false;
    snapshot_under_way_[chunk] = true;
    snapshots_.erase(snapshot);
    return true;
  }
  if (!gradients_.empty()) {
    if (gradient_under_way_[gradients_.back()]) return false;
    if (!write_object(ObjectKind::gradient, gradients_.back(), step_)) return false;
    gradient_under_way_[gradients_.back()] = true;
    gradients_.pop_back();
    if (chance(4) && !committed_) request_commit();  // before the last gradients were written
    return true;
  }
  if (!committed_) return request_commit(), true;
  // The snapshots of a step leave memory before the next update.
  if (step_ == setup_.steps || !snapshots_.empty() || held_) return false;
  const std::uint64_t durable = any_durable_ ? durable_ : 0;
  if (setup_.durability == Durability::step && step_ > durable + 2) return false;
  if (making_checkpoint_ && (setup_.shards > 1 || chance(2))) return false;
  begin_step();
  return true;
}

inline void World::begin_step() {
  ++step_;
  committed_ = false;
  if (setup_.durability == Durability::checkpoint) return;
  for (std::uint32_t g = 0; g < spec_.gradients.size(); ++g) {
    if (uses(line_, g, step_)) gradients_.push_back(g);
  }
  std::shuffle(gradients_.begin(), gradients_.end(), random_);
}

inline void World::request_commit() {
  const bool skip = step_ > start_ && skipped(line_, step_);
  std::vector<std::byte> payload(4 + random_() % 2000);
  std::memcpy(payload.data(), &line_, sizeof line_);
  std::vector<std::uint32_t> used;
  for (std::uint32_t g = 0; g < spec_.gradients.size(); ++g) {
    if (uses(line_, g, step_)) used.push_back(g);
  }
  CommitRequest request;
  request.step = step_;
  request.skipped = skip;
  std::vector<std::byte> update(kUpdateBytes);
  const auto rate = rate_of(line_, step_);
  std::memcpy(update.data(), &rate, sizeof rate);
  request.update = update;
  request.payload = payload;
  request.gradients = used;
  committed_ = true;
  if (step_ != start_ && !skip) start_updates();
  journal_->commit(request);
  if (setup_.shards == 1) {
    if (!making_checkpoint_ && chance(4) && checkpoints_.size() < 2) checkpoint();
  } else if (mix(rate, 5) % 4 == 0) {  // as all shards do
    if (checkpoints_.size() == 2) forget_checkpoint();
    checkpoint();
  }
}

inline void World::start_updates() {
  applied_ = step_;
  for (std::uint32_t c = 0; c < setup_.chunks; ++c) {
    if (step_ - newest_snapshot_[c] < period(c) || constant(c) || elsewhere(c)) continue;
    snapshots_.emplace_back(c, step_);
    newest_snapshot_[c] = step_;
  }
}

inline void World::checkpoint() {
  making_checkpoint_ = true;
  for (std::uint32_t c = 0; c < setup_.chunks; ++c) {
    if (newest_snapshot_[c] >= applied_ || constant(c) || elsewhere(c)) continue;
    snapshots_.emplace_back(c, applied_);
    newest_snapshot_[c] = applied_;
  }
  journal_->checkpoint([this](const Manifest& manifest, std::exception_ptr error) {
    making_checkpoint_ = false;
    if (error) return fail("a checkpoint was not made");
    ++checkpoints_made_;
    checkpoints_.push_back(decode_manifest(encode(manifest), MetadataLayout(spec_).identity()));
  });
}

inline void World::forget_checkpoint() {
  const Manifest manifest = checkpoints_.front();
  checkpoints_.erase(checkpoints_.begin());
  journal_->unpin(manifest);
}

/// Once nothing is under way, exactly what recovery needs is taken.
inline void World::check_no_leak(std::int64_t at_most) {
  for (std::size_t before = 0; before != free_.size();) {
    before = free_.size();
    journal_->hurry();
    while (!media_->idle()) media_->complete_one();
  }
  Recovered r;
  wrong_ = check(media_->live(), &r, at_most);
  if (setup_.durability == Durability::checkpoint) return;  // snapshots since the last checkpoint are taken, too
  const std::vector<storage::Place> taken(taken_.begin(), taken_.end());
  if (wrong_.empty() && taken != r.places) fail(text(taken.size(), " places are taken, ", r.places.size(), " needed"));
}

}  // namespace spillway::journal::testing
