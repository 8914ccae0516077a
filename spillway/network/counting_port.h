// A port that counts what passes through it, by whether it stays in this process's machine.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "spillway/network/port.h"

namespace spillway::network {

/// Bytes of messages that have begun, whether they have arrived or not.
struct Traffic {
  std::uint64_t sent = 0, received = 0;
  std::uint64_t sent_between = 0, received_between = 0;  ///< of these, to and from other machines
};

class CountingPort final : public Port {
 public:
  /// `local`: processes of each machine, as state::World has it; it divides the world.
  CountingPort(std::shared_ptr<Port> port, std::size_t local) : port_(std::move(port)), local_(local) {}

  [[nodiscard]] std::size_t rank() const noexcept override { return port_->rank(); }
  [[nodiscard]] std::size_t size() const noexcept override { return port_->size(); }
  void start(std::vector<Message> messages, Done done) override;
  /// Any thread.
  [[nodiscard]] Traffic traffic() const noexcept;

 private:
  struct Ways {
    std::atomic<std::uint64_t> sent = 0, received = 0;
  };
  const std::shared_ptr<Port> port_;
  const std::size_t local_;
  Ways inside_, between_;
};

}  // namespace spillway::network
