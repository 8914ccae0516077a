// A port that another thread serves: it takes a transfer, moves its bytes with a library of its own (torch.distributed
// from Python), and says how that ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "spillway/base/mutex.h"
#include "spillway/network/port.h"

namespace spillway::network {

/// A transfer to be served. The numbers rise by one, from 0.
struct Transfer {
  std::uint64_t id = 0;
  std::vector<Message> messages;
};

class Served : public Port {
 public:
  Served(std::size_t rank, std::size_t size) noexcept : rank_(rank), size_(size) {}
  ~Served() override { close(); }

  [[nodiscard]] std::size_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::size_t size() const noexcept override { return size_; }
  /// Throws Error(bad_input) for a peer outside the world or this rank itself; nothing has begun then. After close()
  /// `done` is told at once that the port is closed.
  void start(std::vector<Message> messages, Done done) override;

  // By the thread that serves:

  /// The oldest transfer that was not taken yet; waits for one, and is empty when the port is closed.
  [[nodiscard]] std::optional<Transfer> next();
  /// It has ended. `error`: why, in words that name the peer; empty: well. Throws Error(bad_input) for a transfer that
  /// was not taken or has ended.
  void end(std::uint64_t id, const std::string& error);

  /// Lets next() go and fails every transfer that has not ended. Any thread; again does nothing.
  void close() noexcept;
  /// Transfers that have not ended.
  [[nodiscard]] std::size_t under_way() const;

 private:
  void check(const std::vector<Message>& messages) const;

  const std::size_t rank_, size_;
  mutable Mutex mutex_;
  Condition arrived_;
  bool closed_ SPILLWAY_GUARDED_BY(mutex_) = false;
  std::uint64_t next_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  std::deque<Transfer> waiting_ SPILLWAY_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Done> done_ SPILLWAY_GUARDED_BY(mutex_);  ///< of those that have not ended
};

}  // namespace spillway::network
