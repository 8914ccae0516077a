// The commit protocol of docs/decisions/0001-durable-storage.md as a small model: abstract paths, places that hold one
// value each, records that are whole or torn. Ten steps with everything that may happen to a run are cut at every
// event; what is recovered is compared with the run that was never interrupted. Then the protocol is broken on purpose,
// one rule at a time, and the same comparison has to notice.
#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {

using Hash = std::uint64_t;

Hash mix(Hash a, Hash b) {
  Hash h = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
  return h ^ (h >> 31);
}

/// One rule of the protocol that a run breaks.
enum class Fault {
  none,
  commit_before_flush,         ///< the commit is written before the gradients are durable
  record_before_flush,         ///< an image's record is written before its pieces are durable
  record_before_commit,        ///< ... before the step of its version is durable
  free_before_flush,           ///< places are free when the new record is written, not when it is durable
  gradient_free_early,         ///< a gradient is free when the image of its version is written
  image_in_place,              ///< the new image takes the places of the old one
  trusted_slot,                ///< the record is written over the newest durable one
  commit_slot,                 ///< a commit is written over one that replay still needs
  old_generation_counts,       ///< recovery takes records of an abandoned line
  free_before_opening,         ///< a new generation does not make its first commit before it goes on
  opening_before_flush,        ///< a new generation trusts what a killed process had not flushed
  back_commit_before_records,  ///< going back: the commit first, then the records that name the pinned places
  not_pinned,                  ///< a checkpoint does not keep its places
};

struct Place {
  int path = 0, piece = 0;
  auto operator<=>(const Place&) const = default;
};

/// Generations first to last belong to the line, up to a step.
struct Span {
  int first, last, step;
};

enum class Kind { data, commit, image, gradient };
struct Key {
  Kind kind;
  int object, slot;
  auto operator<=>(const Key&) const = default;
};

/// What a place or a slot holds. A torn one fails its checksum.
struct Cell {
  bool torn = false;
  Hash tag = 0;  ///< of data
  int generation = 0, version = 0;
  std::vector<Place> places;
  bool skipped = false;  ///< from here on: of commits
  Hash rate = 0;
  int previous = 0;  ///< the last step before this one that was not skipped
  int line = 0;      ///< which uninterrupted run this follows
  std::vector<Span> lineage;
};

using Contents = std::map<Key, Cell>;

/// What a write was and what has not been flushed since.
struct Disk {
  Contents durable;
  std::vector<std::pair<Key, Cell>> pending;
};

struct Image {
  int version = -1;
  int generation = 0;
  std::vector<Place> places;
  int slot = 0;
  unsigned dirty = 0;   ///< paths whose flush its pieces wait for
  bool record = false;  ///< its record was written
  unsigned record_dirty = 0;
};

struct Gradient {
  int chunk, version, slot;
  std::vector<Place> places;
};

struct Checkpoint {
  int step, line;
  Cell commit;
  std::vector<Image> images;
};

/// What recovery found.
struct State {
  std::string wrong;  ///< empty: nothing
  int generation = 0, step = -1, line = 0;
  std::vector<Span> lineage;
  std::vector<Image> images;
  std::vector<Gradient> gradients;
  std::map<int, std::pair<int, Cell>> commits;  ///< step -> slot, commit
  Cell newest;
};

struct Setup {
  unsigned seed = 0;
  Fault fault = Fault::none;
  int paths = 1, chunks = 3, steps = 10;
};

class Model {
 public:
  explicit Model(const Setup& setup) : setup_(setup), random_(setup.seed), disks_(unsigned(setup.paths)) {
    for (int c = 0; c < setup.chunks; ++c) periods_.push_back(c % 3 == 2 ? 3 : 1);
    for (int p = 0; p < setup.paths; ++p) {
      for (int i = 0; i < 90 / setup.paths; ++i) free_.push_back({p, i});
    }
  }

  /// Runs to the last step; the first thing that was found wrong, or nothing.
  std::string run() {
    work([this] { begin(); });
    while (step_ < setup_.steps && wrong_.empty()) {
      work([this] {
        one_step();
        if (chance(5)) checkpoint();
        if (chance(8) && !checkpoints_.empty()) forget_checkpoint();
      });
    }
    return wrong_;
  }
  int events() const { return events_; }

 private:
  // ---- the world
  struct Killed {};  ///< thrown where the process ends
  /// Does it; where the process is killed, another one takes over, which may be killed as well.
  void work(const std::function<void()>& what) {
    std::function<void()> next = what;
    for (bool done = false; !done && wrong_.empty();) {
      try {
        next();
        done = true;
      } catch (const Killed&) {
        next = [this] { restart(); };
      }
    }
  }
  bool chance(int in) { return int(random_() % unsigned(in)) == 0; }
  bool broken(Fault fault) const { return setup_.fault == fault; }
  int home(int chunk) const { return chunk % setup_.paths; }
  unsigned all() const { return (1u << setup_.paths) - 1; }
  int period(int chunk) const { return periods_[unsigned(chunk)]; }
  int commit_slots() const { return 6; }

  /// Something happened: whatever a cut would leave now must be recoverable.
  void event() {
    ++events_;
    if (!wrong_.empty()) return;
    for (int i = 0; i < 4 && wrong_.empty(); ++i) {
      std::vector<Contents> left;
      const int kind = i == 0 ? 0 : i == 1 ? 1 : 2;  // nothing, everything, any subset
      for (const Disk& disk : disks_) left.push_back(after_cut(disk, kind));
      const State state = recover(left);
      wrong_ = state.wrong;
      if (wrong_.empty() && state.step >= 0 && state.line == line_ && state.step < durable_) {
        wrong_ = "recovered step " + std::to_string(state.step) + ", reported " + std::to_string(durable_);
      }
      if (wrong_.empty() && state.step < 0 && durable_ >= 0) wrong_ = "nothing recovered";
      if (wrong_.empty() && state.line != line_ && going_back_from_ != state.line)
        wrong_ = "an abandoned line came back";
      for (const Checkpoint& c : checkpoints_) {
        if (wrong_.empty()) wrong_ = check_images(c.images, c.line, left, "checkpoint");
      }
    }
    if (chance(200)) throw Killed{};
  }

  Contents after_cut(const Disk& disk, int kind) {
    Contents out = disk.durable;
    for (const auto& [key, cell] : disk.pending) {
      const unsigned fate = kind == 0 ? 0 : kind == 1 ? 1 : random_() % 3;
      if (fate == 0) continue;
      Cell left = cell;
      left.torn = fate == 2;
      out[key] = left;
    }
    return out;
  }

  void write(int path, const Key& key, const Cell& cell) {
    disks_[unsigned(path)].pending.push_back({key, cell});
    event();
  }
  void flush(int path) {
    Disk& disk = disks_[unsigned(path)];
    for (const auto& [key, cell] : disk.pending) disk.durable[key] = cell;
    disk.pending.clear();
    for (auto& chunk : written_) {
      for (Image& image : chunk) {
        image.dirty &= ~(1u << path);
        image.record_dirty &= ~(1u << path);
      }
    }
    event();
  }
  void flush_all() {
    for (int p = 0; p < setup_.paths; ++p) flush(p), pause();
  }

  std::vector<Place> allocate() {
    std::vector<Place> out;
    while (out.size() < 2) {
      if (free_.empty()) epoch();
      if (free_.empty()) return wrong_ = wrong_.empty() ? "no free place" : wrong_, std::vector<Place>(2);
      // The places that became free last are the likeliest: whatever was freed too early is soon overwritten.
      const std::size_t at = chance(3) ? random_() % free_.size() : free_.size() - 1;
      out.push_back(free_[at]);
      free_.erase(free_.begin() + std::ptrdiff_t(at));
    }
    return out;
  }
  bool pinned(const std::vector<Place>& places) const {
    for (const Checkpoint& checkpoint : checkpoints_) {
      for (const Image& image : checkpoint.images) {
        if (image.places == places) return !broken(Fault::not_pinned);
      }
    }
    return false;
  }
  void release(const std::vector<Place>& places) {
    if (pinned(places)) return;
    for (const Place& place : places) {
      if (std::find(free_.begin(), free_.end(), place) != free_.end() && wrong_.empty()) wrong_ = "freed twice";
      free_.push_back(place);
    }
  }

  // ---- the run that was never interrupted
  Hash gradient_of(int line, int chunk, int step) const { return mix(mix(Hash(line) + 77, Hash(chunk)), Hash(step)); }
  Hash rate_of(int line, int step) const { return mix(Hash(line) * 31 + 5, Hash(step)); }
  bool skipped(int line, int step) const { return mix(rate_of(line, step), 3) % 5 == 0; }
  /// value(chunk, step) of a line; lines that went back share the beginning of their parent.
  Hash truth(int line, int chunk, int step) const {
    if (step == 0) return mix(1, Hash(chunk));
    if (const auto origin = origins_.find(line); origin != origins_.end() && step <= origin->second.second) {
      return truth(origin->second.first, chunk, step);
    }
    const Hash before = truth(line, chunk, step - 1);
    return skipped(line, step) ? before : mix(mix(before, gradient_of(line, chunk, step)), rate_of(line, step));
  }
  static Hash tag(Hash value, std::size_t piece) { return mix(value, piece + 1000); }

  // ---- the protocol
  void write_pieces(const std::vector<Place>& places, Hash value) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      Cell cell;
      cell.tag = tag(value, i);
      write(places[i].path, {Kind::data, places[i].piece, 0}, cell);
    }
  }
  static unsigned mask(const std::vector<Place>& places) {
    unsigned out = 0;
    for (const Place& place : places) out |= 1u << place.path;
    return out;
  }

  /// A fresh start: images of version 0, their records, then the first commit.
  void begin() {
    ++generation_;
    trusted_.assign(unsigned(setup_.chunks), {});
    written_.assign(unsigned(setup_.chunks), {});
    durable_ = -1;
    step_ = applied_ = 0;
    commits_.clear();
    gradients_.clear();
    lineage_.clear();
    for (int c = 0; c < setup_.chunks; ++c) {
      Image image{0, generation_, allocate(), 0};
      write_pieces(image.places, truth(line_, c, 0));
      trusted_[unsigned(c)] = image;
    }
    flush_all();
    for (int c = 0; c < setup_.chunks; ++c) write_image_record(c, trusted_[unsigned(c)]);
    flush_all();
    write_commit(0, false, 0);
    flush_all();
    durable_ = 0;
    values_.clear();
    for (int c = 0; c < setup_.chunks; ++c) values_.push_back(truth(line_, c, 0));
  }

  void write_image_record(int chunk, const Image& image) {
    Cell cell;
    cell.generation = image.generation;
    cell.version = image.version;
    cell.places = image.places;
    write(home(chunk), {Kind::image, chunk, image.slot}, cell);
  }

  int oldest_image() const {
    int out = trusted_[0].version;
    for (const Image& image : trusted_) out = std::min(out, image.version);
    return out;
  }
  int free_commit_slot() {
    for (auto it = commits_.begin(); it != commits_.end();) {
      const bool needed = it->first == durable_ || (it->first > oldest_image() && !it->second.second.skipped);
      it = needed ? std::next(it) : commits_.erase(it);
    }
    if (broken(Fault::commit_slot) && commits_.contains(durable_)) return commits_[durable_].first;
    std::set<int> taken;
    for (const auto& [step, slot] : commits_) taken.insert(slot.first);
    for (int s = 0; s < commit_slots(); ++s) {
      if (!taken.contains(s)) return s;
    }
    if (wrong_.empty()) wrong_ = "no commit slot";
    return 0;
  }
  Cell commit_cell(int step, bool skip, Hash rate) {
    Cell cell;
    cell.generation = generation_;
    cell.version = step;
    cell.skipped = skip;
    cell.rate = rate;
    cell.previous = applied_;
    cell.line = line_;
    cell.lineage = lineage_;
    return cell;
  }
  void write_commit(int step, bool skip, Hash rate) { put_commit(commit_cell(step, skip, rate)); }
  void put_commit(const Cell& cell) {
    const int slot = free_commit_slot();
    for (int p = 0; p < setup_.paths; ++p) write(p, {Kind::commit, 0, slot}, cell), pause();
    commits_[cell.version] = {slot, cell};
  }

  void write_gradient(int chunk, int step) {
    Gradient gradient{chunk, step, 0, allocate()};
    write_pieces(gradient.places, gradient_of(line_, chunk, step));
    gradient.slot = gradient_slot(chunk);
    Cell cell;
    cell.generation = generation_;
    cell.version = step;
    cell.places = gradient.places;
    gradients_.push_back(gradient);
    write(home(chunk), {Kind::gradient, chunk, gradient.slot}, cell);
  }
  int gradient_slot(int chunk) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      std::set<int> taken;
      for (const Gradient& g : gradients_) {
        if (g.chunk == chunk) taken.insert(g.slot);
      }
      for (int s = 0; s < period(chunk) + 1; ++s) {
        if (!taken.contains(s)) return s;
      }
      finish_images();
      epoch();
    }
    if (wrong_.empty()) wrong_ = "no gradient slot";
    return 0;
  }

  void one_step() {
    const int step = step_ + 1;
    const bool skip = skipped(line_, step);
    const Hash rate = rate_of(line_, step);
    for (int c = 0; c < setup_.chunks && wrong_.empty(); ++c) write_gradient(c, step), pause();
    finish_images();
    const bool early = chance(2);  // updates need not wait for the commit
    if (!skip && early) start_updates(step, rate);
    if (chance(4)) epoch();
    if (!broken(Fault::commit_before_flush)) flush_all();
    write_commit(step, skip, rate);
    record_images();
    if (!skip && !early) start_updates(step, rate);
    flush_all();
    durable_ = step;
    step_ = step;
    if (!skip) applied_ = step;
    if (skip) drop_gradients([&](const Gradient& g) { return g.version == step; });
    trust();
    if (chance(3)) epoch();
  }

  void start_updates(int step, Hash rate) {
    for (int c = 0; c < setup_.chunks; ++c) {
      values_[unsigned(c)] = mix(mix(values_[unsigned(c)], gradient_of(line_, c, step)), rate);
      if (step - newest_version(c) >= period(c)) lazy_.push_back({c, step, values_[unsigned(c)]});
    }
  }
  int newest_version(int chunk) const {
    const auto& list = written_[unsigned(chunk)];
    return list.empty() ? trusted_[unsigned(chunk)].version : list.back().version;
  }

  struct Lazy {
    int chunk, version;
    Hash value;
  };
  /// Between two events, images of finished updates may be written.
  void pause() {
    if (chance(4) && !lazy_.empty()) write_lazy();
  }
  void finish_images() {
    while (!lazy_.empty()) write_lazy();
  }
  void write_lazy() {
    const Lazy work = lazy_.front();
    lazy_.erase(lazy_.begin());
    write_image(work.chunk, work.version, work.value);
  }
  void write_image(int chunk, int version, Hash value) {
    const Image& old = trusted_[unsigned(chunk)];
    const bool in_place = broken(Fault::image_in_place);
    Image image{version, generation_, in_place ? old.places : allocate(), 0, 0, false, 0};
    write_pieces(image.places, value);
    image.dirty = mask(image.places);
    written_[unsigned(chunk)].push_back(image);
    if (broken(Fault::gradient_free_early)) {
      drop_gradients([&](const Gradient& g) { return g.chunk == chunk && g.version <= version; });
    }
  }

  /// Records of the images that the last flush covers.
  void record_images() {
    for (int c = 0; c < setup_.chunks; ++c) {
      for (Image& image : written_[unsigned(c)]) {
        if (image.record || (image.dirty != 0 && !broken(Fault::record_before_flush))) continue;
        if (image.version > durable_ && !broken(Fault::record_before_commit)) continue;
        const bool other_recorded = std::any_of(written_[unsigned(c)].begin(), written_[unsigned(c)].end(),
                                                [](const Image& i) { return i.record; });
        if (other_recorded) continue;
        const int trusted = trusted_[unsigned(c)].slot;
        image.slot = broken(Fault::trusted_slot) ? trusted : 1 - trusted;
        image.record = true;
        image.record_dirty = 1u << home(c);
        const Image copy = image;
        write_image_record(c, copy);
        if (broken(Fault::free_before_flush)) trust_one(c, true);
        break;
      }
    }
  }
  void trust() {
    for (int c = 0; c < setup_.chunks; ++c) trust_one(c, false);
  }
  /// A durable record makes its image the one that counts; what was before it is free.
  void trust_one(int chunk, bool early) {
    auto& list = written_[unsigned(chunk)];
    const auto it = std::find_if(list.begin(), list.end(), [&](const Image& image) {
      return image.record && (early || image.record_dirty == 0);
    });
    if (it == list.end()) return;
    Image& trusted = trusted_[unsigned(chunk)];
    if (!broken(Fault::image_in_place)) release(trusted.places);
    trusted = *it;
    list.erase(it);
    drop_gradients([&](const Gradient& g) { return g.chunk == chunk && g.version <= trusted.version; });
  }
  void drop_gradients(const std::function<bool(const Gradient&)>& which) {
    for (const Gradient& g : gradients_) {
      if (which(g)) release(g.places);
    }
    std::erase_if(gradients_, which);
  }
  void epoch() {
    flush_all();
    record_images();
    flush_all();
    trust();
  }

  // ---- checkpoints and restarts
  void checkpoint() {
    finish_images();
    for (int c = 0; c < setup_.chunks; ++c) {
      if (newest_version(c) < applied_) write_image(c, applied_, values_[unsigned(c)]);
    }
    for (int i = 0; i < 3; ++i) epoch();
    Checkpoint out{step_, line_, commits_.at(step_).second, trusted_};
    checkpoints_.push_back(out);
    event();
  }
  void forget_checkpoint() {
    const std::vector<Image> images = checkpoints_.front().images;
    checkpoints_.erase(checkpoints_.begin());
    for (int c = 0; c < setup_.chunks; ++c) {
      const auto& places = images[unsigned(c)].places;
      if (places != trusted_[unsigned(c)].places && !pinned(places) && !broken(Fault::not_pinned)) release(places);
    }
    event();
  }

  /// The process ends here (killed, or the power is cut) and another one takes over, at a checkpoint if it likes.
  void restart() {
    const bool cut = chance(2);
    std::vector<Contents> seen;
    for (Disk& disk : disks_) {
      seen.push_back(after_cut(disk, cut ? 2 : 1));
      if (cut) disk = {seen.back(), {}};
    }
    const State state = recover(seen);
    if (!state.wrong.empty()) {
      wrong_ = state.wrong;
      return;
    }
    adopt(state);
    if (state.step < 0) return begin();
    if (!checkpoints_.empty() && chance(2)) return go_back(state, checkpoints_[random_() % checkpoints_.size()]);
    reopen(state);
  }

  void adopt(const State& state) {
    lazy_.clear();
    values_.assign(unsigned(setup_.chunks), 0);
    written_.assign(unsigned(setup_.chunks), {});
    trusted_ = state.images;
    gradients_ = state.gradients;
    commits_ = state.commits;
    generation_ = state.generation + 1;
    step_ = durable_ = state.step;
    line_ = state.line;
    going_back_from_ = -1;
    applied_ = state.newest.skipped ? state.newest.previous : state.step;
    std::set<Place> used;
    for (const Image& image : trusted_) used.insert(image.places.begin(), image.places.end());
    for (const Gradient& g : gradients_) used.insert(g.places.begin(), g.places.end());
    for (const Checkpoint& c : checkpoints_) {
      for (const Image& image : c.images) used.insert(image.places.begin(), image.places.end());
    }
    free_.clear();
    for (int p = 0; p < setup_.paths; ++p) {
      for (int i = 0; i < 90 / setup_.paths; ++i) {
        if (!used.contains({p, i})) free_.push_back({p, i});
      }
    }
  }

  /// The first commit of the new generation repeats the last one of the old.
  void reopen(const State& state) {
    lineage_ = state.lineage;
    lineage_.push_back({state.newest.generation, state.newest.generation, state.step});
    Cell opening = state.newest;
    opening.generation = generation_;
    opening.lineage = lineage_;
    if (!broken(Fault::opening_before_flush)) flush_all();
    if (!broken(Fault::free_before_opening)) {
      put_commit(opening);
      flush_all();
    }
    replay();
  }
  void replay() {
    for (int c = 0; c < setup_.chunks; ++c) {
      values_[unsigned(c)] = truth(line_, c, step_);
      // A chunk that was behind may have its image written again at once.
      if (trusted_[unsigned(c)].version < applied_ && (period(c) == 1 || chance(2))) {
        write_image(c, step_, values_[unsigned(c)]);
      }
    }
    if (broken(Fault::free_before_opening)) epoch();
  }

  void go_back(const State& state, const Checkpoint& to) {
    going_back_from_ = line_;
    const Checkpoint target = to;
    const std::vector<Image> old = trusted_;
    const std::vector<Gradient> old_gradients = gradients_;
    flush_all();
    const auto records = [&] {
      for (int c = 0; c < setup_.chunks; ++c) {
        Image image = target.images[unsigned(c)];
        image.generation = generation_;
        image.slot = 1 - old[unsigned(c)].slot;
        trusted_[unsigned(c)] = image;
        write_image_record(c, image);
      }
    };
    if (!broken(Fault::back_commit_before_records)) records(), flush_all();
    const int line = int(origins_.size()) + 1;
    Cell opening = target.commit;
    opening.generation = generation_;
    opening.lineage.clear();
    opening.line = line;
    origins_[line] = {target.line, target.step};
    durable_ = state.step;  // until the new commit is there
    put_commit_of_new_line(opening);
    if (broken(Fault::back_commit_before_records)) records(), flush_all();
    for (int c = 0; c < setup_.chunks; ++c) {
      if (old[unsigned(c)].places != trusted_[unsigned(c)].places) release(old[unsigned(c)].places);
    }
    for (const Gradient& g : old_gradients) release(g.places);
    step_ = durable_ = target.step;
    applied_ = opening.skipped ? opening.previous : target.step;
    for (int c = 0; c < setup_.chunks; ++c) values_[unsigned(c)] = truth(line_, c, step_);
  }
  void put_commit_of_new_line(const Cell& opening) {
    const int slot = free_commit_slot();
    line_ = opening.line;
    const int before = durable_;
    durable_ = -1;  // either line may come back now
    for (int p = 0; p < setup_.paths; ++p) write(p, {Kind::commit, 0, slot}, opening);
    flush_all();
    durable_ = before;
    going_back_from_ = -1;
    commits_ = {{opening.version, {slot, opening}}};
    gradients_.clear();
    lineage_.clear();
  }

  // ---- recovery
  bool in_line(const std::vector<Span>& line, const Cell& cell) const {
    if (broken(Fault::old_generation_counts)) return true;
    return std::any_of(line.begin(), line.end(), [&](const Span& span) {
      return span.first <= cell.generation && cell.generation <= span.last && cell.version <= span.step;
    });
  }

  State recover(const std::vector<Contents>& disks) const {
    State out;
    Cell newest;
    newest.generation = -1;
    for (const Contents& disk : disks) {
      for (const auto& [key, cell] : disk) {
        if (key.kind == Kind::data || cell.torn) continue;
        out.generation = std::max(out.generation, cell.generation);
        const bool newer = std::pair(cell.generation, cell.version) > std::pair(newest.generation, newest.version);
        if (key.kind == Kind::commit && newer) newest = cell;
      }
    }
    if (newest.generation < 0) return out;
    out.newest = newest;
    out.step = newest.version;
    out.line = newest.line;
    out.lineage = newest.lineage;
    std::vector<Span> line = newest.lineage;
    line.push_back({newest.generation, newest.generation, newest.version});
    find_images(disks, line, out);
    if (out.wrong.empty()) find_commits(disks, line, out);
    if (out.wrong.empty()) find_gradients(disks, line, out);
    if (out.wrong.empty()) out.wrong = check(disks, out);
    return out;
  }
  void find_images(const std::vector<Contents>& disks, const std::vector<Span>& line, State& out) const {
    out.images.assign(unsigned(setup_.chunks), {});
    for (const Contents& disk : disks) {
      for (const auto& [key, cell] : disk) {
        if (key.kind != Kind::image || cell.torn || !in_line(line, cell) || cell.version > out.step) continue;
        Image& best = out.images[unsigned(key.object)];
        if (std::pair(cell.version, cell.generation) <= std::pair(best.version, best.generation)) continue;
        best = {cell.version, cell.generation, cell.places, key.slot};
      }
    }
    for (const Image& image : out.images) {
      if (image.version < 0) out.wrong = "an image is missing";
    }
  }
  void find_commits(const std::vector<Contents>& disks, const std::vector<Span>& line, State& out) const {
    std::map<int, std::pair<int, Cell>> found;
    for (const Contents& disk : disks) {
      for (const auto& [key, cell] : disk) {
        if (key.kind != Kind::commit || cell.torn || !in_line(line, cell)) continue;
        const auto it = found.find(cell.version);
        if (it == found.end() || it->second.second.generation < cell.generation) found[cell.version] = {key.slot, cell};
      }
    }
    int oldest = out.step;
    for (const Image& image : out.images) oldest = std::min(oldest, image.version);
    out.commits[out.step] = found[out.step];
    for (int k = out.newest.skipped ? out.newest.previous : out.step; k > oldest; k = found[k].second.previous) {
      if (!found.contains(k)) return void(out.wrong = "the commit of step " + std::to_string(k) + " is missing");
      out.commits[k] = found[k];
    }
  }
  void find_gradients(const std::vector<Contents>& disks, const std::vector<Span>& line, State& out) const {
    for (int c = 0; c < setup_.chunks; ++c) {
      for (const auto& [k, commit] : out.commits) {
        if (commit.second.skipped || k <= out.images[unsigned(c)].version) continue;
        const auto gradient = find_gradient(disks, line, c, k);
        if (!gradient) return void(out.wrong = "a gradient of step " + std::to_string(k) + " is missing");
        out.gradients.push_back(*gradient);
      }
    }
  }
  std::optional<Gradient> find_gradient(const std::vector<Contents>& disks, const std::vector<Span>& line, int chunk,
                                        int version) const {
    for (const Contents& disk : disks) {
      for (const auto& [key, cell] : disk) {
        if (key.kind != Kind::gradient || key.object != chunk || cell.torn || cell.version != version) continue;
        if (in_line(line, cell)) return Gradient{chunk, version, key.slot, cell.places};
      }
    }
    return std::nullopt;
  }

  std::string check_pieces(const std::vector<Place>& places, Hash value, const std::vector<Contents>& disks,
                           const std::string& what) const {
    for (std::size_t i = 0; i < places.size(); ++i) {
      const Contents& disk = disks[unsigned(places[i].path)];
      const auto it = disk.find({Kind::data, places[i].piece, 0});
      if (it == disk.end() || it->second.torn || it->second.tag != tag(value, i))
        return what + " does not hold its value";
    }
    return {};
  }
  std::string check_images(const std::vector<Image>& images, int line, const std::vector<Contents>& disks,
                           const std::string& what) const {
    std::string wrong;
    for (int c = 0; c < setup_.chunks && wrong.empty(); ++c) {
      const Image& image = images[unsigned(c)];
      wrong = check_pieces(image.places, truth(line, c, image.version), disks, what + "'s image");
    }
    return wrong;
  }
  /// Every chunk, updated from what was recovered, has the value of the run that was never interrupted.
  std::string check(const std::vector<Contents>& disks, const State& state) const {
    std::string wrong = check_images(state.images, state.line, disks, "the run");
    std::vector<Hash> values;
    for (int c = 0; c < setup_.chunks; ++c) values.push_back(truth(state.line, c, state.images[unsigned(c)].version));
    for (const Gradient& g : state.gradients) {  // in the order of steps, for each chunk
      const Hash gradient = gradient_of(line_at(state.line, g.version), g.chunk, g.version);
      if (wrong.empty()) wrong = check_pieces(g.places, gradient, disks, "a gradient");
      Hash& value = values[unsigned(g.chunk)];
      value = mix(mix(value, gradient), state.commits.at(g.version).second.rate);
    }
    for (int c = 0; c < setup_.chunks && wrong.empty(); ++c) {
      if (values[unsigned(c)] != truth(state.line, c, state.step)) wrong = "a chunk has another value";
    }
    std::set<Place> used;
    std::size_t pieces = 0;
    const auto use = [&](const std::vector<Place>& places) {
      used.insert(places.begin(), places.end());
      pieces += places.size();
    };
    for (const Image& image : state.images) use(image.places);
    for (const Gradient& g : state.gradients) use(g.places);
    if (wrong.empty() && used.size() != pieces) wrong = "a place is used twice";
    return wrong;
  }
  /// The line that computed a step of `line`.
  int line_at(int line, int step) const {
    const auto origin = origins_.find(line);
    return origin != origins_.end() && step <= origin->second.second ? line_at(origin->second.first, step) : line;
  }

  const Setup setup_;
  std::mt19937 random_;
  std::vector<Disk> disks_;
  std::vector<int> periods_;
  std::string wrong_;
  int events_ = 0;

  int line_ = 0;
  int going_back_from_ = -1;
  std::map<int, std::pair<int, int>> origins_;  ///< line -> the line and step it went back to
  std::vector<Checkpoint> checkpoints_;

  // Of the process.
  int generation_ = 0, step_ = 0, durable_ = -1, applied_ = 0;
  std::vector<Span> lineage_;
  std::vector<Hash> values_;
  std::vector<Image> trusted_;
  std::vector<std::vector<Image>> written_;  ///< per chunk: not trusted yet, oldest first
  std::vector<Gradient> gradients_;
  std::map<int, std::pair<int, Cell>> commits_;
  std::vector<Place> free_;
  std::vector<Lazy> lazy_;
};

TEST(CommitModelTest, EveryCutLeavesTheValuesOfARunThatWasNotInterrupted) {
  int events = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    Model model({seed, Fault::none, 1 + int(seed % 3), 3 + int(seed % 2)});
    ASSERT_EQ(model.run(), "") << "seed " << seed;
    events += model.events();
  }
  EXPECT_GT(events, 300 * 100);
}

class BrokenModelTest : public testing::TestWithParam<Fault> {};

TEST_P(BrokenModelTest, IsNoticed) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    Model model({seed, GetParam(), 1 + int(seed % 3), 3 + int(seed % 2)});
    if (!model.run().empty()) return;
  }
  FAIL() << "200 runs did not notice";
}

INSTANTIATE_TEST_SUITE_P(Faults, BrokenModelTest,
                         testing::Values(Fault::commit_before_flush, Fault::record_before_flush,
                                         Fault::record_before_commit, Fault::free_before_flush,
                                         Fault::gradient_free_early, Fault::image_in_place, Fault::trusted_slot,
                                         Fault::commit_slot, Fault::old_generation_counts, Fault::free_before_opening,
                                         Fault::opening_before_flush, Fault::back_commit_before_records,
                                         Fault::not_pinned));

}  // namespace
