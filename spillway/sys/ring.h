// Moves bytes between memory and one file without waiting for each: pieces go in, completions come out.
//
// A ring belongs to one thread: every member but `wake` is called by the thread that called the factory. The ring knows
// nothing of order or integrity; it reports for each piece what the operating system said, and the caller judges it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "spillway/base/bytes.h"
#include "spillway/sys/file.h"

namespace spillway::sys {

enum class Operation : std::uint8_t {
  read,
  write,
  sync,  ///< makes durable every write whose completion was taken before the submit (fdatasync); says nothing of others
};

struct Piece {
  Operation operation = Operation::read;
  std::byte* memory = nullptr;  ///< the caller leaves it alone until the piece completes; unused by a sync
  std::uint32_t bytes = 0;      ///< > 0; unused by a sync
  Bytes offset = 0;             ///< in the file; unused by a sync
  std::uint64_t tag = 0;        ///< comes back with the completion; not ~0
};

struct Completion {
  std::uint64_t tag = 0;
  std::int32_t result = 0;  ///< bytes moved, which may be fewer than asked (sync: 0); or a negative errno
};

/// No region registered with the kernel is larger than this; io_uring accepts no more.
inline constexpr Bytes kRegistrationLimit = 1 * GiB;

class Ring {
 public:
  virtual ~Ring() = default;

  /// "io_uring" or "thread pool": for messages.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// Registers memory that pieces will use, once, with nothing in flight. Returns the reason when that is refused;
  /// empty when it worked or has no meaning here. Pieces outside registered memory work all the same.
  virtual std::string register_memory(std::span<std::byte> memory) = 0;
  /// Hands over a piece; at most `depth` may be in flight. May begin only at the next flush or wait.
  virtual void submit(const Piece& piece) = 0;
  /// Begins everything submitted. Does not wait for it.
  virtual void flush() = 0;
  /// Flushes; waits until a piece has completed or `wake` was called since the last wait; fills `out` (at least `depth`
  /// long) with what has completed, in any order, and returns how many. 0: woken.
  virtual std::size_t wait(std::span<Completion> out) = 0;
  /// Makes a present or the next `wait` return. Any thread, at any time while the ring exists.
  virtual void wake() noexcept = 0;
};

/// Makes a ring for an open file that outlives it, with up to `depth` (> 0) pieces in flight.
using RingFactory = std::function<std::unique_ptr<Ring>(const File& file, unsigned depth)>;

/// io_uring. Throws Error(unsupported) with the errno when the kernel does not offer it.
[[nodiscard]] std::unique_ptr<Ring> make_uring(const File& file, unsigned depth);
/// Blocking calls on `depth` threads, at most 32.
[[nodiscard]] std::unique_ptr<Ring> make_thread_ring(const File& file, unsigned depth);
/// io_uring where the kernel offers it, threads elsewhere.
[[nodiscard]] std::unique_ptr<Ring> make_ring(const File& file, unsigned depth);

}  // namespace spillway::sys
