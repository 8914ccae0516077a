// The run that was never interrupted, recovery, and their comparison.
#pragma once

#include "tests/storage/commit_model_words.h"

namespace spillway::storage::model {

class Observer {
 protected:
  explicit Observer(const Setup& setup) : setup_(setup) {}

  bool broken(Fault fault) const { return setup_.fault == fault; }

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
  std::map<int, std::pair<int, int>> origins_;  ///< line -> the line and step it went back to
};

}  // namespace spillway::storage::model
