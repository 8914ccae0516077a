// A process's share of a device that other processes use too.
//
// Every process publishes the bytes it has in flight in a table that all of them have mapped, and decides alone, from
// the same numbers, whether it may have more: its equal part of the budget always, and of what the others leave over
// whoever is behind in bytes first. So nobody grants, nobody waits for a grant, and there is no lock that a stopped or
// killed process could keep.
//
// Refused is only who has bytes in flight itself. So a refusal needs no wake-up: the end of one of those transfers is
// the event at which to ask again, and it always comes.
//
// A process counts for at most its equal part of the budget, whatever it holds. One that is stopped costs the others
// that part and blocks nobody; one that died costs it until somebody is refused twice, and sees by its lock that it is
// gone.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/storage/path.h"
#include "spillway/storage/share_layout.h"
#include "spillway/storage/share_options.h"
#include "spillway/sys/device_id.h"
#include "spillway/sys/shared_memory.h"

namespace spillway::storage {

class Share {
 public:
  /// Joins the processes of this user that share `device`. Throws Error(does_not_fit) when kShareSlots use it already,
  /// Error(unsupported) when they use another format of the table, Error(bad_input) when the table's file cannot be
  /// opened, Error(io) when another process that is joining does not come to an end of it within options.patience.
  explicit Share(sys::DeviceId device, ShareOptions options = {});
  /// Leaves; what it still held is free.
  ~Share();
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  // One thread at a time. None of these blocks; none makes a system call while no other process is refused anything.

  /// Takes `bytes` (> 0) for a transfer that is about to start. False: not now. Then at least one transfer of this
  /// direction is in flight; ask again when it has ended.
  [[nodiscard]] bool try_acquire(Direction direction, Bytes bytes) noexcept;
  /// Gives back what was taken for a transfer that has ended, or was not started.
  void release(Direction direction, Bytes bytes) noexcept;

  [[nodiscard]] Bytes held(Direction direction) const noexcept { return held_[index(direction)]; }
  /// The budget of the device, for all processes together.
  [[nodiscard]] Bytes budget(Direction direction) const noexcept { return table_.header.budgets[index(direction)]; }
  /// The numbers of the processes that share the device, this one included.
  [[nodiscard]] std::vector<int> processes() const;
  /// The file that holds the table.
  [[nodiscard]] const std::filesystem::path& file() const noexcept { return memory_.path(); }

 private:
  /// What the other processes do in one direction; those that hold nothing do not count.
  struct View {
    unsigned active = 0;                  ///< processes
    bool one_is_behind = false;           ///< one of them wants more, and was served less than this process
    std::uint64_t furthest = 0;           ///< most that any of them was served
    std::array<Bytes, kShareSlots> held;  ///< of the first `active`
  };

  ShareTable& join(const ShareOptions& options);
  unsigned claim_slot();
  [[nodiscard]] View look(std::uint64_t others, std::size_t lane) const noexcept;
  [[nodiscard]] bool may_hold(Bytes after, std::size_t lane, const View& view) const noexcept;
  bool grant(std::size_t lane, Bytes bytes) noexcept;
  bool refuse(std::size_t lane, const View& view) noexcept;
  void want(std::size_t lane, bool wants) noexcept;
  bool reap_dead_slots(std::uint64_t others, std::size_t lane) noexcept;
  void vacate(unsigned slot) noexcept;
  void clear(unsigned slot) noexcept;

  sys::SharedMemory memory_;
  ShareTable& table_;
  const unsigned slot_;
  ShareSlot& own_;
  const int process_;
  std::array<Bytes, 2> held_{};
  std::array<std::uint64_t, 2> served_{};
  std::array<bool, 2> wants_{};
  std::array<std::array<std::uint64_t, kShareSlots>, 2> seen_{};  ///< `served - held` of each at the last refusal
};

}  // namespace spillway::storage
