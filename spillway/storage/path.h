// One storage path: a preallocated volume and the asynchronous engine that moves bytes to and from it.
//
// The volume is one file, `spillway.volume` or one with the number of a shard (volume_name), in a directory, or a whole
// block device; opened with O_DIRECT where that
// is there with an alignment of at most kTransferAlignment, else used through the page cache. Nothing is opened,
// closed, created or extended between construction and destruction. Extents start at multiples of kExtentAlignment and
// are always transferred whole or as the same prefix, piece by piece; each piece has a checksum in memory, computed
// before it is written and verified when it is read. Before the extents lies the metadata area: records of whoever
// wants to find the extents again in a later process, with checksums of its own making.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/storage/share_options.h"
#include "spillway/sys/ring.h"

namespace spillway::storage {

/// Granule of extents and size of a piece.
inline constexpr Bytes kExtentAlignment = 1 * MiB;
/// Memory addresses and lengths of transfers are multiples of this.
inline constexpr Bytes kTransferAlignment = 4 * KiB;

struct PathOptions {
  std::string name = "0";           ///< shown as path:NAME
  std::filesystem::path directory;  ///< must exist and be writable; empty: `device` says where
  /// Bytes of extents the volume must hold; rounded up to kExtentAlignment. A device is taken whole: of that it is the
  /// least that must be there, and 0 asks for nothing in particular.
  Bytes capacity = 0;
  std::string run;            ///< identity written into the superblock
  bool overwrite = false;     ///< replace a volume of another run instead of refusing it
  unsigned queue_depth = 16;  ///< pieces in flight
  bool checksums = true;
  /// Shares the device fairly with the other processes that do so, too (see share.h); a notice where that cannot be.
  std::optional<ShareOptions> share = {};
  Bytes metadata = 0;        ///< bytes of the metadata area; rounded up to kExtentAlignment
  std::uint64_t model = 0;   ///< fingerprint of the model whose state it holds
  std::uint32_t number = 0;  ///< of this path among the run's
  std::uint32_t paths = 1;   ///< of the run
  std::uint64_t set = 0;     ///< of a new volume: the same in all that are made together
  std::uint32_t shard = 0;   ///< of the run's state
  std::uint32_t world = 1;   ///< how many shards the run has
  /// Open the volume that is there and keep what it holds; else start with one that holds nothing. One of less capacity
  /// than asked for grows, one of more stays as it is.
  bool reopen = false;
  /// Without `reopen` and `overwrite`, refuse a volume of this run in whose metadata anything was recorded, instead of
  /// giving it up. That is asked while its lock is held, so no other process can record anything after it.
  bool keep_records = false;
  /// Files or devices of the run's other volumes. `keep_records` refuses a new volume also where one of these has
  /// records, which is asked while the locks of both are held and before anything is changed: a volume that took none,
  /// since its drive failed, belongs to what the others hold.
  std::vector<std::filesystem::path> beside = {};
  /// Write a new volume once from end to end, so that no later write makes the file system convert reserved space. A
  /// device has nothing to convert, and all of it would be written.
  bool prewrite = false;
  /// Is told the bytes that `prewrite` has written and is to write, on the caller's thread. What it throws ends the
  /// construction.
  std::function<void(Bytes done, Bytes of)> progress = {};
  std::filesystem::path device = {};  ///< a block device in place of a directory
  bool erase = false;                 ///< a device's file system, partition table or unknown bytes; never with `reopen`
};

enum class Direction : std::uint8_t { read, write };

/// The position of a direction's entry in an array of two: reads come first.
[[nodiscard]] constexpr std::size_t index(Direction direction) noexcept {
  return static_cast<std::size_t>(direction);
}

/// The areas of a volume. Each counts its offsets from its own start.
enum class Area : std::uint8_t {
  data,      ///< the extents
  metadata,  ///< records
};

/// Called on the path's thread when a transfer has ended; null error = every byte of it was moved (and, read,
/// verified). Must be short and must not throw.
using Done = void (*)(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept;

struct Transfer {
  Direction direction = Direction::read;
  std::byte* memory = nullptr;  ///< aligned to kTransferAlignment; untouched by the caller until Done
  Bytes bytes = 0;              ///< > 0, multiple of kTransferAlignment; of metadata at most kExtentAlignment
  Bytes offset = 0;             ///< in the area, multiple of kExtentAlignment; of metadata of kTransferAlignment
  /// Smaller is served first; equal: metadata before data, reads before writes, then in order of arrival. While both
  /// directions wait, each has half of the queue depth for itself.
  std::uint64_t deadline = 0;
  Done done = nullptr;
  void* context = nullptr;
  std::uint64_t token = 0;
  std::string_view what =
      {};  ///< names the content in errors ("exp_avg of model.layers.3 chunk 1"); must outlive the transfer
  Area area = Area::data;
};

/// What is known of a piece of data, which is 1 MiB of an extent or its shorter end.
struct PieceMark {
  std::uint64_t checksum = 0;  ///< seeded with the offset; 0: none was made, none is verified
  std::uint32_t bytes = 0;     ///< that were written; 0: nothing, or a write that has not ended well

  bool operator==(const PieceMark&) const = default;
};

struct Counters {
  Bytes read = 0, written = 0;                 ///< bytes completed, metadata included
  double busy_seconds = 0;                     ///< time with at least one piece in flight
  double read_seconds = 0, write_seconds = 0;  ///< time with at least one piece of that direction in flight
  std::uint64_t syncs = 0;                     ///< flushes of the volume that succeeded
  double sync_seconds = 0;                     ///< time with a flush under way
  unsigned under_way = 0;                      ///< pieces, and a flush, that the drive has not answered yet
  double silent_seconds = 0;  ///< since it last answered, or was first asked; 0 when nothing is under way
};

class Path {
 public:
  /// Creates the volume: superblock, space reserved by fallocate. Throws Error(bad_input) for a missing or read-only
  /// directory or a volume that belongs to another run (without `overwrite`), Error(does_not_fit) with bytes asked and
  /// free when the file system is too small. On failure nothing is left behind and an old volume is intact.
  /// A volume of the same run that is large enough is used again; what it held is not readable, and its metadata area
  /// is zeros, as in a new one.
  /// A device is empty, or holds a volume, to which the same rules apply; anything else is refused with
  /// Error(bad_input) without `erase`, and one that somebody uses in any case. Error(does_not_fit) says what it has.
  /// With `reopen` the volume keeps what it holds: metadata is readable, data after `expect`. Throws Error(bad_input)
  /// when it is missing, damaged, of another run, model, format, byte order or place among the run's paths, or has less
  /// metadata than asked for; Error(does_not_fit), with the volume as it was, when it cannot grow.
  explicit Path(PathOptions options);
  /// Uses a ring of the caller's choice; the default is io_uring, or threads where the kernel has none.
  Path(PathOptions options, const sys::RingFactory& ring);
  /// Waits for what is in flight; gives the space back when `remove_on_close` was called.
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
  /// Makes every write durable whose Done was called before; says nothing of others, which go on meanwhile. Done is
  /// called on the path's thread. Requests that come while a flush is under way share the next one. Once a flush has
  /// failed every later one fails with the same error: what the drive did not keep then, no second attempt brings back.
  /// Thread safe.
  void sync(Done done, void* context, std::uint64_t token);
  /// Calls it and waits; throws its error. Not from the path's own thread.
  void sync();
  /// Waits until nothing is queued or in flight, syncs included.
  void drain();

  /// What was last wholly written at `offset` (a multiple of kExtentAlignment), for records. From Done, or any other
  /// thread, while no write of that piece is queued or in flight.
  [[nodiscard]] PieceMark mark(Bytes offset) const;
  /// After reopening, before the piece's first use: what a read at `offset` will be verified against. Throws
  /// Error(internal) for an offset or a length that no piece has.
  void expect(Bytes offset, const PieceMark& mark);

  [[nodiscard]] Counters counters() const;
  /// The bytes of the areas are what was asked for, rounded up; those of a reopened volume, and of a device, are what
  /// is there.
  [[nodiscard]] Bytes capacity() const noexcept;
  [[nodiscard]] Bytes metadata() const noexcept;
  [[nodiscard]] bool direct() const noexcept;  ///< O_DIRECT in use
  [[nodiscard]] const std::string& notice()
      const;  ///< what a person should know: no O_DIRECT, no registration, a damaged superblock; or empty
  [[nodiscard]] std::filesystem::path volume() const;  ///< the file, or the device
  /// Whether the volume's file was removed, or another one has its name. Its bytes are there until it is closed, and no
  /// later process finds them. Never of a device.
  [[nodiscard]] bool is_displaced() const;
  /// At the end the file's name is removed, while its lock is still held. A device keeps its bytes and says that it
  /// holds nothing and is nobody's, so that any run may take it without `overwrite` or `erase`. With `remove` false
  /// neither happens, as at first.
  void remove_on_close(bool remove = true) noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::storage
