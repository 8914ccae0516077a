// Which writes the flushes of each path have made durable.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway::journal {

/// A point in the order of events; later ones are larger.
using Tick = std::uint64_t;
/// A set of paths: bit p.
using PathSet = std::uint64_t;

/// A flush covers the writes whose completion was noted before it was started. Not thread safe.
class Flushes {
 public:
  explicit Flushes(std::uint32_t paths) : paths_(paths) {}

  /// Writes to these paths have completed.
  Tick written(PathSet paths);
  /// Whether those writes are durable.
  [[nodiscard]] bool cover(PathSet paths, Tick tick) const;

  /// Paths with writes that are not durable.
  [[nodiscard]] PathSet dirty() const;
  /// A tick that a flush covers only when it starts from now on.
  Tick mark() { return ++now_; }

  /// Asks for a flush of the paths that hold such writes, unless there was one.
  void want(PathSet paths, Tick tick);
  /// Asks for a flush of every path that holds writes which are not durable.
  void want_all();
  /// Asks for a flush of every path, whatever is known of it: it may hold writes of another process.
  void want_unseen();

  /// While a path is held, its flush waits: what is being written is to be part of it.
  void hold(std::uint32_t path) { ++paths_[path].held; }
  void let_go(std::uint32_t path) { --paths_[path].held; }

  /// Whether a flush of the path is to be started now; if so it counts as started.
  bool start(std::uint32_t path);
  void finish(std::uint32_t path);

 private:
  struct State {
    Tick dirty = 0;    ///< the last write
    Tick wanted = 0;   ///< a flush has to cover this
    Tick started = 0;  ///< what the flush under way covers
    Tick covered = 0;
    std::uint32_t held = 0;
    bool running = false;
  };
  Tick now_ = 0;
  std::vector<State> paths_;
};

}  // namespace spillway::journal
