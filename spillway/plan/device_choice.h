// Residents of a compute device's memory, and how far ahead copies run to it.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "spillway/plan/problem.h"

namespace spillway::plan {

/// The schedule of a step in which this stays on the device; with host memory as small as it can be.
using DeviceSchedule = std::function<Schedule(const Placement&, std::uint32_t ahead)>;

/// Blocks that live there are decided before, from the first on: theirs are the updates that the next step needs first.
/// So are those that pass, the next ones. Then boundary activations, the last layers' before others' (they are kept for
/// the shortest time), and gradients of what passes: each saves two copies of its bytes a step. Then weights, of which
/// each saves one, or both where they pass, by demand_order(). Of several processes each has its shards of a block
/// there, with all weights of one that is frozen in part, and no gradient stays, which the host adds up; of a head's
/// slices the first of each process come first. What comes and goes has a window of two blocks, of three where
/// everything else stays, and of one where no more fits.
class DeviceChoice {
 public:
  /// `spare`: bytes of the device that are left to buffers whose lifetimes only the whole schedule knows.
  explicit DeviceChoice(const Problem& problem, Bytes spare = 0)
      : problem_(problem), spare_(spare), blocks_(problem.decisions.blocks), placement_(problem.layout) {}

  /// For a budget with a device, beside the blocks that the problem's decisions name. Throws NoRoomOnDevice with what
  /// would fit.
  void choose(const DeviceSchedule& schedule);

  /// Blocks that may live there: at most so many; and of these as many as have room beside what has to be there.
  [[nodiscard]] std::size_t may_live() const;
  [[nodiscard]] std::size_t most_device_resident(const DeviceSchedule& schedule);

  /// Objects that stay on the device; all else is on paths.
  [[nodiscard]] const Placement& placement() const noexcept { return placement_; }
  [[nodiscard]] std::uint32_t ahead() const noexcept { return ahead_; }
  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }  ///< of the device's arena

 private:
  enum class Kind : std::uint8_t { activation, weight, state, grad };
  /// Smallest set that stays together: a boundary, or the chunks of a layer, or a slice of a head.
  struct Unit {
    Kind kind = Kind::weight;
    Index first = 0, count = 1;
  };

  void list_units();
  void take_turns();
  [[nodiscard]] std::span<const Unit> device_updated() const;
  [[nodiscard]] Placement place(std::size_t free) const;
  [[nodiscard]] bool takes_change(Index chunk) const;
  void keep_changes(const Unit& unit, Placement& placement) const;
  [[nodiscard]] Bytes room() const noexcept;
  [[nodiscard]] Bytes add_workspace(Bytes arena) const;
  [[nodiscard]] Bytes more_elsewhere() const;
  bool try_it(const DeviceSchedule& schedule, std::size_t free, std::uint32_t ahead);
  std::size_t most(const DeviceSchedule& schedule, std::uint32_t ahead);
  [[nodiscard]] Bytes bytes_of(const Unit& unit) const;
  [[noreturn]] void refuse(Bytes needed) const;

  const Problem problem_;
  const Bytes spare_;
  std::vector<Unit> fixed_, free_;  ///< what the caller asked for; what may be kept beside
  std::vector<Unit> states_;        ///< what may live there, or pass
  UpdatedThere blocks_;             ///< of them the first so many live there, and so many of the next pass
  Placement placement_;
  std::uint32_t ahead_ = 1;
  Bytes bytes_ = 0, asked_ = 0;  ///< asked_: of the last one tried
};

}  // namespace spillway::plan
