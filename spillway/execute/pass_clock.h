// When each pass ran on a device with memory of its own: timed events of its stream, around what the caller gives to
// it. The host hears of that later, so instances are looked at when they have ended.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "spillway/device/device.h"
#include "spillway/execute/clock.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {

class PassClock {
 public:
  struct Span {
    double start = 0, end = 0;  ///< seconds of the clock
  };
  struct Total {
    std::uint64_t passes = 0;
    double seconds = 0;
  };

  /// `compute`: the stream that passes are issued to, which it waits for. All references must outlive it.
  PassClock(const plan::Schedule& schedule, device::Device& device, device::Stream compute, const Clock& clock);

  /// An instance with passes begins.
  void begin(std::uint64_t instance);
  /// What is given to the stream from here on is that pass's.
  void opened(plan::Index pass);
  /// All of it has been given.
  void issued(plan::Index pass);
  /// There are no more passes in it.
  void end();

  /// Of an instance, by pass; empty unless all that was issued of it has ended on the device, or when it is too long
  /// ago. Spans of passes that did not run are 0, 0.
  [[nodiscard]] std::vector<Span> spans(std::uint64_t instance);
  /// Of all passes that have ended, by kind.
  [[nodiscard]] std::vector<Total> totals();

 private:
  static constexpr std::size_t kKept = 3;  ///< instances: the one before the newest is shown while the next is issued

  struct Events {
    device::Event first = 0, last = 0;
  };
  struct Instance {
    std::uint64_t number = ~std::uint64_t{0};
    std::vector<Events> events;  ///< by pass
    std::vector<plan::Index> issued;
    bool ended = false, counted = false;
    std::vector<Span> spans;
  };

  /// The newest, and those before it.
  [[nodiscard]] Instance& instance(std::uint64_t before = 0) { return instances_[(begun_ + kKept - before) % kKept]; }
  [[nodiscard]] bool done(const Instance& it);
  void count(Instance& it);  // locked
  void look();               // locked

  const plan::Schedule& schedule_;
  device::Device& device_;
  const device::Stream compute_;

  std::mutex mutex_;  ///< guards what follows
  std::uint64_t begun_ = 0;
  std::array<Instance, kKept> instances_;
  device::Event known_;  ///< when the device came to it is known: at `known_at_`
  double known_at_ = 0;
  std::vector<Total> totals_;  ///< by kind
};

}  // namespace spillway::execute
