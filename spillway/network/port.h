// The network of a run as a port: bytes between the processes of a world, which somebody else moves. Only bytes:
// whoever adds numbers does that itself, in an order of its own.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <vector>

namespace spillway::network {

/// What goes to another rank, or comes from one.
struct Message {
  std::size_t peer = 0;        ///< that rank; another than this process's own
  bool sends = false;          ///< else it is received
  std::span<std::byte> bytes;  ///< not empty; of what is sent they are read only
};

/// Called once, from any thread, when the last message of a transfer has arrived and left, or with what failed. Must
/// not throw, and must not wait for another transfer.
using Done = std::function<void(const std::exception_ptr& error)>;

class Port {
 public:
  virtual ~Port() = default;
  [[nodiscard]] virtual std::size_t rank() const noexcept = 0;
  [[nodiscard]] virtual std::size_t size() const noexcept = 0;  ///< of the world
  /// Begins a transfer: all its messages at once. What a rank sends to another is received there in the order in which
  /// it was sent, message by message, of the same size. Transfers of a port begin in the order of these calls, and all
  /// ranks make theirs in one order, so that none waits for another in a circle. Does not block. The bytes stay as they
  /// are, or untouched, until `done`. An empty list is done at once.
  virtual void start(std::vector<Message> messages, Done done) = 0;
};

}  // namespace spillway::network
