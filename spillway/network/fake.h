// A network inside one process, for tests: the ports of a whole world. What is sent arrives when a test says so, in an
// order that it draws, and transfers fail where it wants.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "spillway/base/mutex.h"
#include "spillway/network/port.h"

namespace spillway::network {

class FakeNetwork {
 public:
  /// `seed`: of the order in which messages arrive.
  explicit FakeNetwork(std::size_t size, std::uint32_t seed = 0);
  ~FakeNetwork();
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  [[nodiscard]] Port& port(std::size_t rank);
  /// Transfer number `transfer` of that rank, counted from 0, fails instead of beginning. Whoever waits for its
  /// messages waits until lose() is called.
  void fail(std::size_t rank, std::uint64_t transfer, std::string words);
  /// A rank is gone: whatever waits for it fails, now and later.
  void lose(std::size_t rank);

  /// Moves one message that both sides have begun, of those that may be next between two ranks; false: there is none.
  bool move();
  void move_all();
  /// Transfers that have not ended, of all ranks.
  [[nodiscard]] std::size_t under_way() const;
  [[nodiscard]] std::uint64_t bytes() const;  ///< moved so far
  /// Bytes that one rank has sent to another so far.
  [[nodiscard]] std::uint64_t bytes(std::size_t from, std::size_t to) const;

 private:
  class FakePort;
  struct Open;
  struct Lane {  ///< what one rank has for another
    std::deque<std::pair<std::shared_ptr<Open>, Message>> sent, wanted;
    std::uint64_t bytes = 0;  ///< moved so far
  };
  void start(std::size_t rank, std::vector<Message> messages, Done done);
  [[nodiscard]] Lane& lane(std::size_t from, std::size_t to) { return lanes_[from * ports_.size() + to]; }
  [[nodiscard]] std::vector<Done> take_waiting(std::size_t rank) SPILLWAY_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<FakePort>> ports_;
  std::vector<Lane> lanes_;  ///< by sender, then receiver
  std::vector<std::uint64_t> begun_;
  std::vector<bool> lost_;
  std::vector<std::pair<std::pair<std::size_t, std::uint64_t>, std::string>> faults_;
  std::mt19937 random_;
  std::size_t under_way_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace spillway::network
