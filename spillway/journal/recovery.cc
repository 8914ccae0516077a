#include "spillway/journal/recovery.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/journal/metadata_reader.h"

namespace spillway::journal {
namespace {

/// One recovery, whose steps have the order of the member functions.
class Recovery {
 public:
  Recovery(const JournalSpec& spec, Media& media, const RecoveryOptions& options)
      : spec_(spec), options_(options), reader_(spec, media, options) {}

  Recovered run() {
    find_newest();
    if (out_.found) find_blank_paths();
    find_snapshots();
    if (out_.found) {
      find_commits();
      choose_needed();
    }
    find_gradients();
    if (out_.found) check_places();
    find_stale_paths();
    // A step is durable when snapshots of it are recorded: this is a first commit that was torn.
    if (!reader_.recorded) reader_.damage.clear();
    std::ranges::copy(places_of(options_.pinned), std::back_inserter(out_.places));
    std::sort(out_.places.begin(), out_.places.end());
    out_.places.erase(std::unique(out_.places.begin(), out_.places.end()), out_.places.end());
    out_.damage = std::move(reader_.damage);
    out_.foreign = reader_.foreign;
    out_.unread = std::move(reader_.unread);
    return std::move(out_);
  }

  /// Of no step where none is there.
  Commit newest_commit() {
    find_newest();
    if (!any_commit_) newest().nothing = true;
    return newest();
  }

 private:
  static CommitOrder order(const Commit& commit) { return {commit.generation, !commit.nothing, commit.step}; }
  [[noreturn]] void refuse(const std::string& what) const {
    std::string message = text("the run cannot go on from what its storage paths hold: ", what);
    if (!reader_.damage.empty()) {
      const Damage& first = reader_.damage.front();
      message += text(". ", reader_.damage.size(), " records there are damaged, the first is ", first.what, " at byte ",
                      first.offset, " of the metadata of path ", first.path);
    }
    throw Error(ErrorCode::corrupt, message + ". Resume from a checkpoint");
  }

  void seen(std::uint32_t generation) { out_.newest_generation = std::max(out_.newest_generation, generation); }
  [[nodiscard]] Commit& newest() { return out_.newest; }

  void find_newest() {
    reader_.commits([&](const Commit& commit, std::uint32_t slot, std::uint32_t path) {
      seen(commit.generation);
      see_on_path(commit, slot, path);
      if (any_commit_ && order(commit) <= order(newest())) return keep(commit, slot);
      any_commit_ = true;
      newest() = commit;
      out_.newest_slot = slot;
      keep(commit, slot);
    });
    end_ = newest();
    const bool any = any_commit_ && !newest().nothing;
    if (any && std::cmp_greater(newest().step, options_.at_most)) cut_off();
    out_.found = any && options_.at_most != kNoStep;
  }
  void see_on_path(const Commit& commit, std::uint32_t slot, std::uint32_t path) {
    if (!commit.nothing) out_.highest_step = std::max(out_.highest_step, commit.step);
    Sighting& sighting = sightings_[order(commit)];
    sighting.slot = slot;
    sighting.targets |= commit.paths;
    sighting.holders |= std::uint64_t{1} << path;
  }
  /// The commit of the last step that every shard has takes the place of the newest one. It is there, for nothing is
  /// written over it before the next step is on every shard.
  void cut_off() {
    out_.cut_off = newest().step;
    if (options_.at_most == kNoStep) return;
    const auto step = static_cast<std::uint64_t>(options_.at_most);
    const RecoveredCommit* last = commit_of(step);
    if (last == nullptr) {
      refuse(text("step ", step, " is the last that every shard has, but of the commits of this one, shard ",
                  spec_.rank, ", whose last is of step ", newest().step, ", that one is missing"));
    }
    const RecoveredCommit found = *last;
    newest() = found.commit;
    out_.newest_slot = found.slot;
  }
  /// All generations of the commits of a step are kept until the line is known.
  void keep(const Commit& commit, std::uint32_t slot) {
    if (!commit.nothing) commits_[{commit.step, commit.generation}] = {commit, slot};
  }

  /// Every path that is written gets the commit with which a run opens, before any step is durable.
  void find_blank_paths() {
    for (std::uint32_t path = 0; path < spec_.paths; ++path) {
      if ((reader_.written >> path & 1) != 0) continue;
      reader_.damage.push_back(
          {path, 0, reader_.layout().used(), "the run's commits: none is there, although another path holds some"});
    }
  }

  void find_snapshots() {
    out_.snapshots.resize(out_.found ? spec_.chunks.size() : 0);
    std::vector<bool> have(out_.snapshots.size());
    reader_.records(ObjectKind::snapshot,
                    [&](const RecordHead& head, const std::vector<Piece>& pieces, std::uint32_t slot) {
                      seen(head.generation);
                      if (!out_.found) return check_begun(head);
                      check_not_newer(head);
                      if (!newest().in_line(head.generation, head.version)) return;
                      RecoveredObject& best = out_.snapshots[head.object];
                      const auto now = std::pair(head.version, head.generation);
                      if (have[head.object] && now <= std::pair(best.stored.version, best.generation)) return;
                      have[head.object] = true;
                      best = {{head.object, head.version, pieces}, head.generation, slot};
                    });
    for (std::uint32_t chunk = 0; chunk < have.size(); ++chunk) {
      if (spec_.chunks[chunk].elsewhere) {
        out_.snapshots[chunk].stored = {chunk, newest().applied(), {}};
      } else if (!have[chunk]) {
        missing(ObjectKind::snapshot, chunk, text("of step ", newest().step, " or before"));
      } else if (newest().complete && is_older(out_.snapshots[chunk].stored)) {
        missing(ObjectKind::snapshot, chunk, text("of step ", newest().applied()));
      }
    }
  }
  /// Nothing is replayed after a complete commit.
  [[nodiscard]] bool is_older(const StoredObject& snapshot) const {
    return !spec_.chunks[snapshot.object].constant && snapshot.version < out_.newest.applied();
  }
  /// A run that has committed nothing has at most one snapshot of each chunk, all of one step.
  void check_begun(const RecordHead& head) {
    if (!any_commit_) refuse("there are records of snapshots, but no whole commit");
    if (head.generation != newest().generation) return;
    if (first_step_ && *first_step_ != head.version) {
      refuse(text("there are records of snapshots of steps ", *first_step_, " and ", head.version,
                  ", but no whole commit of a step"));
    }
    first_step_ = head.version;
  }
  /// With durable steps a snapshot has a record only when its step is durable.
  void check_not_newer(const RecordHead& head) {
    if (spec_.durability != Durability::step || head.generation != end_.generation) return;
    if (head.version <= end_.step) return;
    refuse(text("the newest whole commit is of step ", end_.step, ", but there is a record of the snapshot of ",
                reader_.name(ObjectKind::snapshot, head.object), " of step ", head.version,
                ", which is written only when that step is durable"));
  }
  /// A gradient is written once the commit that opens its generation is durable, and not many steps ahead.
  void check_gradient(const RecordHead& head) const {
    if (!any_commit_) refuse("there are records of gradients, but no whole commit");
    const bool ahead =
        head.generation == end_.generation && !end_.nothing && head.version > end_.step + kMostStepsAhead;
    if (head.generation <= end_.generation && !ahead) return;
    refuse(text("the newest whole commit is of step ", end_.step, " in generation ", end_.generation,
                ", but there is a record of the gradient of ", reader_.name(ObjectKind::gradient, head.object),
                " of step ", head.version, " in generation ", head.generation,
                ", which is written only when later commits are durable"));
  }
  [[noreturn]] void missing(ObjectKind kind, std::uint32_t object, const std::string& which) const {
    refuse(text("no whole record ", kind == ObjectKind::snapshot ? "of the snapshot of " : "of the gradient of ",
                reader_.name(kind, object), " ", which, " (it should be on ", reader_.places_of(kind, object), ")"));
  }

  /// The commits of the steps after the oldest snapshot, along the steps that were not skipped.
  void find_commits() {
    std::uint64_t oldest = newest().step;
    for (const RecoveredObject& snapshot : out_.snapshots) {
      if (!spec_.chunks[snapshot.stored.object].constant) oldest = std::min(oldest, snapshot.stored.version);
    }
    for (std::uint64_t step = newest().applied(); step > oldest;) {
      const RecoveredCommit* commit = commit_of(step);
      if (commit == nullptr) refuse(text("the commit of step ", step, ", which is to be replayed, is missing"));
      out_.commits.push_back(*commit);
      if (commit->commit.previous >= step) break;
      step = commit->commit.previous;
    }
    std::reverse(out_.commits.begin(), out_.commits.end());
  }
  [[nodiscard]] const RecoveredCommit* commit_of(std::uint64_t step) {
    const RecoveredCommit* out = nullptr;
    for (auto it = commits_.lower_bound({step, 0}); it != commits_.end() && it->first.first == step; ++it) {
      if (newest().in_line(it->first.second, step)) out = &it->second;
    }
    return out;
  }

  void choose_needed() {
    for (std::uint32_t g = 0; g < spec_.gradients.size(); ++g) {
      const std::uint64_t floor = floor_of(g);
      for (const RecoveredCommit& c : out_.commits) {
        if (c.commit.step > floor && c.commit.used(g)) needed_[{g, c.commit.step}] = out_.gradients.size();
        if (c.commit.step > floor && c.commit.used(g)) out_.gradients.push_back({{g, c.commit.step, {}}, 0, 0});
      }
    }
  }
  [[nodiscard]] std::uint64_t floor_of(std::uint32_t gradient) const {
    const GradientSpec& g = spec_.gradients[gradient];
    std::uint64_t out = out_.snapshots[g.first_chunk].stored.version;
    for (std::uint32_t c = g.first_chunk; c < g.first_chunk + g.chunks; ++c) {
      out = std::min(out, out_.snapshots[c].stored.version);
    }
    return out;
  }

  void find_gradients() {
    std::vector<bool> have(out_.gradients.size());
    reader_.records(ObjectKind::gradient,
                    [&](const RecordHead& head, const std::vector<Piece>& pieces, std::uint32_t slot) {
                      seen(head.generation);
                      check_gradient(head);
                      const auto it = needed_.find({head.object, head.version});
                      if (it == needed_.end() || !newest().in_line(head.generation, head.version)) return;
                      RecoveredObject& gradient = out_.gradients[it->second];
                      if (have[it->second] && gradient.generation >= head.generation) return;
                      have[it->second] = true;
                      gradient = {{head.object, head.version, pieces}, head.generation, slot};
                    });
    for (const auto& [which, index] : needed_) {
      if (!have[index]) missing(ObjectKind::gradient, which.first, text("of step ", which.second));
    }
  }

  // ---- paths that went back

  /// A commit is begun when those before it are durable on every path that took them, and a path that did not take one
  /// is none of those that later commits of the generation are written to.
  void find_stale_paths() {
    if (sightings_.empty()) return;
    out_.last_commit = sightings_.rbegin()->first;
    for (auto later = sightings_.rbegin(), it = std::next(later); it != sightings_.rend(); later = it++) {
      const bool same_generation = std::get<0>(it->first) == std::get<0>(later->first);
      if (same_generation) find_paths_without(*it, later->second.targets);
    }
  }
  struct Sighting {
    std::uint32_t slot = 0;
    std::uint64_t targets = 0, holders = 0;  ///< paths that it is written to, and that hold it
  };
  void find_paths_without(const std::pair<const CommitOrder, Sighting>& durable, std::uint64_t targets) {
    for (std::uint32_t path = 0; path < spec_.paths; ++path) {
      const auto is = [=](const StalePath& stale) { return stale.path == path; };
      if ((targets >> path & 1) == 0 || std::ranges::any_of(out_.stale_paths, is)) continue;
      const auto newest = newest_on(path);
      if (newest >= durable.first || reader_.is_unclear(path, durable.second.slot)) continue;
      const bool any_step = newest && std::get<1>(*newest);
      tell_stale({path, any_step ? std::optional(std::get<2>(*newest)) : std::nullopt, std::get<2>(durable.first)});
    }
  }
  [[nodiscard]] std::optional<CommitOrder> newest_on(std::uint32_t path) const {
    for (auto it = sightings_.rbegin(); it != sightings_.rend(); ++it) {
      if ((it->second.holders >> path & 1) != 0) return it->first;
    }
    return std::nullopt;
  }
  void tell_stale(const StalePath& stale) {
    out_.stale_paths.push_back(stale);
    if ((reader_.written >> stale.path & 1) == 0) return;  // told as one that holds no commits
    const auto newest = stale.step ? text("the newest is of step ", *stale.step) : std::string("none is of a step");
    reader_.damage.push_back({stale.path, 0, reader_.layout().commit(0, reader_.layout().commit_slots()),
                              text("the run's commits: ", newest, ", although that of step ", stale.durable,
                                   " had been durable there: the path went back to an earlier state")});
  }

  void check_places() {
    for (const RecoveredObject& snapshot : out_.snapshots) use(snapshot.stored);
    for (const RecoveredObject& gradient : out_.gradients) use(gradient.stored);
    std::sort(out_.places.begin(), out_.places.end());
    const auto twice = std::adjacent_find(out_.places.begin(), out_.places.end());
    if (twice != out_.places.end()) conflict(*twice);
    const bool outside = std::any_of(out_.places.begin(), out_.places.end(),
                                     [&](const storage::Place& place) { return place.path >= spec_.paths; });
    if (outside) refuse("a record names a path that the run does not have");
  }
  [[noreturn]] void conflict(const storage::Place& place) const {
    std::string who;
    const auto look = [&](const RecoveredObject& object, ObjectKind kind) {
      for (const Piece& piece : object.stored.pieces) {
        if (piece.place != place) continue;
        who += text(who.empty() ? "" : " and ", kind == ObjectKind::snapshot ? "the snapshot of " : "the gradient of ",
                    reader_.name(kind, object.stored.object), " of step ", object.stored.version);
      }
    };
    for (const RecoveredObject& snapshot : out_.snapshots) look(snapshot, ObjectKind::snapshot);
    for (const RecoveredObject& gradient : out_.gradients) look(gradient, ObjectKind::gradient);
    refuse(text("the records of ", who, " name the same piece ", place.piece, " of path ", place.path));
  }
  void use(const StoredObject& object) {
    for (const Piece& piece : object.pieces) out_.places.push_back(piece.place);
  }

  const JournalSpec& spec_;
  const RecoveryOptions& options_;
  MetadataReader reader_;
  Recovered out_;
  bool any_commit_ = false;
  std::map<CommitOrder, Sighting> sightings_;  ///< every whole commit, and the paths that hold it
  Commit end_;                                 ///< the newest one of all, which may have been cut off
  std::optional<std::uint64_t> first_step_;    ///< of the snapshots, where nothing is durable
  std::map<std::pair<std::uint64_t, std::uint32_t>, RecoveredCommit> commits_;  ///< by step and generation
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::size_t> needed_;       ///< gradient and step
};

}  // namespace

NewestStep newest_step(const JournalSpec& spec, Media& media) {
  const RecoveryOptions options;
  const Commit newest = Recovery(spec, media, options).newest_commit();
  return {newest.nothing ? kNoStep : static_cast<std::int64_t>(newest.step), newest.line};
}

Recovered recover(const JournalSpec& spec, Media& media, const RecoveryOptions& options) {
  return Recovery(spec, media, options).run();
}

}  // namespace spillway::journal
