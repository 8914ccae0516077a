#include "spillway/journal/flushes.h"

#include <algorithm>

namespace spillway::journal {

Tick Flushes::written(PathSet paths) {
  ++now_;
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    if ((paths >> p & 1) != 0) paths_[p].dirty = now_;
  }
  return now_;
}

bool Flushes::cover(PathSet paths, Tick tick) const {
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    if ((paths >> p & 1) != 0 && paths_[p].covered < tick) return false;
  }
  return true;
}

PathSet Flushes::dirty() const {
  PathSet out = 0;
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    if (paths_[p].dirty > paths_[p].covered) out |= PathSet{1} << p;
  }
  return out;
}

void Flushes::want(PathSet paths, Tick tick) {
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    if ((paths >> p & 1) != 0) paths_[p].wanted = std::max(paths_[p].wanted, tick);
  }
}

void Flushes::want_all() {
  for (State& path : paths_) path.wanted = std::max(path.wanted, path.dirty);
}

void Flushes::want_unseen() {
  ++now_;
  for (State& path : paths_) path.dirty = path.wanted = now_;
}

bool Flushes::start(std::uint32_t path) {
  State& state = paths_[path];
  if (state.running || state.held != 0 || state.wanted <= state.covered) return false;
  state.running = true;
  state.started = now_;
  return true;
}

void Flushes::finish(std::uint32_t path) {
  State& state = paths_[path];
  state.running = false;
  state.covered = state.started;
}

}  // namespace spillway::journal
