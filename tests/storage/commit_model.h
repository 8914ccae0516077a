// A run of the commit protocol, and what a cut at any event leaves of it.
#pragma once

#include "tests/storage/commit_model_recovery.h"

namespace spillway::storage::model {

class Model : private Observer {
 public:
  explicit Model(const Setup& setup) : Observer(setup), random_(setup.seed), disks_(unsigned(setup.paths)) {
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
    if (broken(Fault::write_before_opening)) replay();
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
    if (!broken(Fault::write_before_opening)) replay();
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

  std::mt19937 random_;
  std::vector<Disk> disks_;
  std::vector<int> periods_;
  std::string wrong_;
  int events_ = 0;

  int line_ = 0;
  int going_back_from_ = -1;
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

}  // namespace spillway::storage::model
