// One storage path: a preallocated volume in a directory and the asynchronous engine that moves bytes to and from it.
//
// The volume is one file, `spillway.volume`, opened with O_DIRECT where the file system has it. Nothing is opened,
// closed, created or extended between construction and destruction. Extents start at multiples of kExtentAlignment and
// are always transferred whole or as the same prefix, piece by piece; each piece has a checksum in memory, computed
// before it is written and verified when it is read.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "spillway/base/bytes.h"
#include "spillway/sys/ring.h"

namespace spillway::storage {

/// Granule of extents and size of a piece.
inline constexpr Bytes kExtentAlignment = 1 * MiB;
/// Memory addresses and lengths of transfers are multiples of this.
inline constexpr Bytes kTransferAlignment = 4 * KiB;

struct PathOptions {
  std::string name = "0";           ///< shown as path:NAME
  std::filesystem::path directory;  ///< must exist and be writable
  Bytes capacity = 0;               ///< bytes of extents the volume must hold; rounded up to kExtentAlignment
  std::string run;                  ///< identity written into the superblock
  bool overwrite = false;           ///< replace a volume of another run instead of refusing it
  unsigned queue_depth = 16;        ///< pieces in flight
  bool checksums = true;
};

enum class Direction : std::uint8_t { read, write };

/// Called on the path's thread when a transfer has ended; null error = every byte of it was moved (and, read,
/// verified). Must be short and must not throw.
using Done = void (*)(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept;

struct Transfer {
  Direction direction = Direction::read;
  std::byte* memory = nullptr;  ///< aligned to kTransferAlignment; untouched by the caller until Done
  Bytes bytes = 0;              ///< > 0, multiple of kTransferAlignment
  Bytes offset = 0;             ///< in the volume's extent space, multiple of kExtentAlignment
  std::uint64_t deadline = 0;   ///< smaller is served first; equal: in order of arrival
  Done done = nullptr;
  void* context = nullptr;
  std::uint64_t token = 0;
  std::string_view what =
      {};  ///< names the content in errors ("exp_avg of model.layers.3 chunk 1"); must outlive the transfer
};

struct Counters {
  Bytes read = 0, written = 0;                 ///< bytes completed
  double busy_seconds = 0;                     ///< time with at least one piece in flight
  double read_seconds = 0, write_seconds = 0;  ///< time with at least one piece of that direction in flight
};

class Path {
 public:
  /// Creates the volume: superblock, space reserved by fallocate. Throws Error(bad_input) for a missing or read-only
  /// directory or a volume that belongs to another run (without `overwrite`), Error(does_not_fit) with bytes asked and
  /// free when the file system is too small. On failure nothing is left behind and an old volume is intact.
  /// A volume of the same run that is large enough is used again as it is; what it held is not readable.
  explicit Path(PathOptions options);
  /// The same over a ring of the caller's choice; the default is io_uring, or threads where the kernel has none.
  Path(PathOptions options, const sys::RingFactory& ring);
  /// Waits for what is in flight; removes the volume file when `remove_on_close` was called.
  ~Path();
  Path(const Path&) = delete;
  Path& operator=(const Path&) = delete;

  /// Registers memory that transfers will use with the ring (in regions of at most 1 GiB). False, with the reason in
  /// `notice()`, when the kernel refuses (memlock limit): transfers then go unregistered. Call once, while idle.
  bool register_memory(std::span<std::byte> memory);

  /// Reserves an extent; throws Error(does_not_fit) when the capacity is used up. Not thread safe.
  Bytes allocate(Bytes bytes);

  /// Starts a transfer; never blocks on the drive. Thread safe. A bad alignment throws Error(internal).
  void start(const Transfer& transfer);
  /// Starts a transfer and waits for it; throws its error. Not from the path's own thread.
  void run(Transfer transfer);
  /// Waits until nothing is queued or in flight.
  void drain();

  [[nodiscard]] Counters counters() const;
  [[nodiscard]] bool direct() const noexcept;  ///< O_DIRECT in use
  [[nodiscard]] const std::string& notice()
      const;  ///< what a person should know: no O_DIRECT, no registration; or empty
  [[nodiscard]] std::filesystem::path volume() const;  ///< the file
  void remove_on_close() noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::storage
