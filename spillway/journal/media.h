// What a journal asks of the paths: writes and flushes of their metadata areas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>

#include "spillway/base/bytes.h"

namespace spillway::journal {

/// Offsets count from the start of the metadata area, in multiples of kMetadataAlignment, as lengths do. Thread safe.
class Media {
 public:
  /// Is told the error, or null when it was done.
  using Done = std::function<void(std::exception_ptr)>;

  virtual ~Media() = default;
  /// Starts a write; `bytes` (aligned to kMetadataAlignment) stay until Done, which may come on any thread, before
  /// the call returns, and in any order.
  virtual void write(std::uint32_t path, Bytes offset, std::span<const std::byte> bytes, Done done) = 0;
  /// Starts a flush of the whole volume, data included: it makes durable every write that had completed when this was
  /// called. Writes and flushes need not be ordered among each other.
  virtual void sync(std::uint32_t path, Done done) = 0;
  /// Reads and waits. Throws Error when it cannot.
  virtual void read(std::uint32_t path, Bytes offset, std::span<std::byte> bytes) = 0;
};

}  // namespace spillway::journal
