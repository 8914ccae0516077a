// The compute device: its memory, its streams of copies and arithmetic, and its events. One contract has several
// implementations.
//
// Streams work in order, each beside the others. An event is recorded in a stream and is done when the stream has come
// that far; other streams and the host wait for it. Recording it again forgets the time before. Each stream is fed by
// one thread at a time; everything else may be called by any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/device/work.h"

namespace spillway::device {

enum class Direction : std::uint8_t { to_device, from_device };

using Stream = std::uint32_t;
using Event = std::uint32_t;

/// Copies of fewer bytes than this do not reach a link's bandwidth (PCIe: 8 to 16 MiB).
inline constexpr Bytes kGoodCopy = 8 * MiB;

/// A listener to a record. The call must not wait for the device.
struct Given {
  void (*call)(void* context, std::uint64_t token) noexcept = nullptr;  ///< null: nobody
  void* context = nullptr;
  std::uint64_t token = 0;
};

class StagedStreams;

/// Host memory is registered in pieces of this size: a system that lets a process register only part of its memory
/// (WSL2, `ulimit -l`) refuses the pieces beyond that part, not all of the memory.
inline constexpr Bytes kRegisteredPiece = 1 * GiB;

class Device {
 public:
  /// `piece`: bytes of host memory that are registered at once; not 0.
  explicit Device(Bytes piece = kRegisteredPiece);
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// "cpu", "simulated", "cuda:0 (NVIDIA H200)".
  [[nodiscard]] virtual std::string name() const = 0;
  /// NUMA node of the host that its link is attached to; none: the kernel does not say, or there is no link.
  [[nodiscard]] virtual std::optional<int> node() const { return std::nullopt; }
  /// Its memory is not the host's: what computes there must be copied there.
  [[nodiscard]] virtual bool separate() const noexcept = 0;
  /// The host may read and write its memory by its addresses.
  [[nodiscard]] virtual bool host_reads() const noexcept = 0;

  /// The arena, once: at least this many bytes at a multiple of 256. Throws Error(does_not_fit) that names what was
  /// asked and what is there.
  std::span<std::byte> allocate(Bytes bytes);
  [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }

  /// Tells the device of host memory that copies will come from and go to; it stays until unregister_host(). The range
  /// is registered piece by piece: first the pieces at the offsets `first`, in their order, then the others. Copies of
  /// a piece that is refused pass through a ring of staging buffers. In that case notice() says how many bytes were
  /// refused, and the answer is false.
  bool register_host(std::span<std::byte> range, std::span<const Bytes> first = {});
  /// Forgets all pieces of a range.
  void unregister_host(std::span<std::byte> range);
  /// What a person should know; empty: nothing.
  [[nodiscard]] const std::string& notice() const noexcept { return notice_; }

  /// A stream of our own. Streams of copies have a direction.
  [[nodiscard]] virtual Stream make_stream() = 0;
  /// A stream of our own for copies, records and waits alone: copy() never blocks in it. A thread of the stream's own
  /// copies between host memory that is not registered and 32 MiB of staging buffers. It begins with the first such
  /// copy, on the CPUs that the caller may run on, and what fails in it is thrown by whoever waits for a later record.
  [[nodiscard]] Stream make_copy_stream();
  /// The caller's stream by its native handle (cuda: a CUstream, null is the default stream). On a device that the host
  /// computes for it is the calling thread itself: what is recorded in it is done, and its waits are the thread's.
  [[nodiscard]] virtual Stream adopt_stream(void* native) = 0;
  [[nodiscard]] virtual Event make_event() = 0;        ///< done until it is first recorded
  [[nodiscard]] virtual Event make_timed_event() = 0;  ///< usable in seconds_between()

  /// Copies, in the order of the stream. Blocks only where host memory is not registered and the stream is none of
  /// make_copy_stream(). Then a copy to the device returns when the host's bytes are read, and a copy from the device
  /// when they are there.
  void copy(Stream stream, Direction direction, std::byte* to, const std::byte* from, Bytes bytes);
  /// Bytes that copies were asked for so far; of any thread.
  [[nodiscard]] Bytes copied(Direction direction) const noexcept {
    return copied_[static_cast<std::size_t>(direction)].load(std::memory_order_relaxed);
  }
  /// Arithmetic on the device's memory. Throws Error(unsupported) where cannot_compute() says why.
  virtual void run(Stream stream, const Work& work) = 0;
  /// Why run() cannot work; empty: it can.
  [[nodiscard]] virtual std::string cannot_compute() const { return {}; }
  /// What run() computes with, in words; empty where it cannot.
  [[nodiscard]] virtual std::string computes_with() const { return "the host's kernels"; }
  /// Threads of the host for run(), where that is the host's work. What it names must outlive the device's work.
  void use(const ParallelFor& parallel_for) noexcept { parallel_for_ = parallel_for; }
  /// Sets bytes of the device's memory.
  virtual void fill(Stream stream, std::byte* to, std::uint8_t value, Bytes bytes) = 0;

  /// Marks the place that a stream has come to. `given` is called once the stream has the record, and the host has the
  /// bytes of staged copies before it. Either this thread calls it at once, or the thread of a stream of copies calls
  /// it before synchronise() returns. It is not called where something failed before the record.
  void record(Event event, Stream stream, const Given& given = {});
  /// What comes after this in the stream waits for what the event was last recorded for. May block until that record is
  /// given, where a stream of copies has it.
  void wait(Stream stream, Event event);
  [[nodiscard]] bool done(Event event);
  /// The host waits. Throws what failed on the device.
  void synchronise(Event event);
  /// Seconds from one timed event to another; negative if the device reached `last` first. Both must be done.
  [[nodiscard]] virtual double seconds_between(Event first, Event last) = 0;
  /// The host waits for every stream of our own and for the adopted ones.
  void synchronise();

 protected:
  [[nodiscard]] const ParallelFor& parallel_for() const noexcept { return parallel_for_; }
  [[nodiscard]] virtual std::span<std::byte> do_allocate(Bytes bytes) = 0;
  /// Empty when the range is registered, else the reason.
  [[nodiscard]] virtual std::string do_register(std::span<std::byte> range) = 0;
  virtual void do_unregister(std::span<std::byte> range) noexcept = 0;
  virtual void do_record(Event event, Stream stream) = 0;
  virtual void do_wait(Stream stream, Event event) = 0;
  [[nodiscard]] virtual bool do_done(Event event) = 0;
  virtual void do_synchronise(Event event) = 0;
  virtual void do_synchronise() = 0;
  /// Host memory that copies may use without registering, at a multiple of 4096.
  [[nodiscard]] virtual std::span<std::byte> staging_memory(Bytes bytes) = 0;
  virtual void issue(Stream stream, Direction direction, std::byte* to, const std::byte* from, Bytes bytes) = 0;
  /// Ends what passes through staging buffers. The destructor of every device whose memory is separate begins with it.
  void end_staging() noexcept;

 private:
  friend class Staging;
  friend class StagingRing;
  friend class StagedStreams;
  /// The first bytes of a range that are all registered, or all not.
  struct Part {
    Bytes bytes = 0;
    bool registered = false;
  };
  [[nodiscard]] Part first_part(const std::byte* host, Bytes bytes) const;

  const Bytes piece_;
  std::span<std::byte> memory_;
  std::string notice_;
  std::array<std::atomic<Bytes>, 2> copied_{};  ///< by direction
  ParallelFor parallel_for_;
  std::unique_ptr<StagedStreams> staged_;
  mutable std::mutex mutex_;                             ///< guards what follows
  std::map<std::byte*, Bytes, std::less<>> registered_;  ///< pieces, by their first byte
};

/// The CPU that runs this: its memory is the host's.
[[nodiscard]] std::unique_ptr<Device> make_cpu();

}  // namespace spillway::device
