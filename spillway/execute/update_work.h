// Work of the update lanes: the arithmetic of an update and of a background refit, in tiles that threads share.
#pragma once

#include <cstddef>

#include "spillway/plan/schedule.h"

namespace spillway::execute {

/// True if the task moves gradients to the host only where a pass has asked for the weights.
[[nodiscard]] inline bool brings_if_asked(const plan::Task& task) noexcept {
  return task.when.only == plan::OnlyIf::asked && traits(task.what.kind).of_gradient;
}

/// The arithmetic of an update, in tiles that several threads may take. Calls must not throw.
class UpdateWork {
 public:
  virtual ~UpdateWork() = default;
  virtual std::size_t slices(plan::Index chunk) const = 0;  ///< of the bytes that an early update changes
  /// Copies a slice to where the schedule has room for it: all of them before prepare(), when the update is early.
  virtual void save(plan::Index chunk, std::size_t slice) = 0;
  virtual void prepare(plan::Index chunk, bool early) = 0;  ///< once, before the tiles
  /// Parts of the update: all tiles of one end before any of the next.
  virtual std::size_t parts(plan::Index /*chunk*/) const { return 1; }
  virtual std::size_t tiles(plan::Index chunk, std::size_t part) const = 0;
  virtual void run(plan::Index chunk, std::size_t part, std::size_t tile, bool early) = 0;
  virtual void finish(plan::Index /*chunk*/, bool /*early*/) {}  ///< once, after them
  /// Before the update: whether its gradient comes to the host. Else it is zero, for no token has met the weights.
  virtual void expect_gradient(plan::Index /*chunk*/, bool /*comes*/) {}
  /// The next update of a chunk that waits (Schedule::update_waits) takes all steps that the chunk has left out; false
  /// if there are none. `has_gradient`: the last step has one, and is the only one; else the gradients are zeros.
  virtual bool take_updates(plan::Index /*chunk*/, bool /*has_gradient*/) { return false; }

  // The background refit that a pass has left to do of a reduced chunk; by default none.
  static constexpr unsigned kRefitParts = 3;
  virtual bool refits(plan::Index /*chunk*/) const { return false; }
  /// True if this process or another has one to do, the same on all of them.
  virtual bool refit_is_due(plan::Index /*chunk*/) const { return false; }
  virtual void begin_refit(plan::Index /*chunk*/) {}  ///< once, before the tiles of the first part
  virtual std::size_t refit_tiles(plan::Index /*chunk*/, unsigned /*part*/) const { return 0; }
  virtual void run_refit(plan::Index /*chunk*/, unsigned /*part*/, std::size_t /*tile*/) {}
  virtual void end_refit(plan::Index /*chunk*/) {}  ///< once, after all
};

}  // namespace spillway::execute
