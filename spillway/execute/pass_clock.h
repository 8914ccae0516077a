// The time that each pass took on a device with its own memory, measured by timed events around the work that the
// caller issues to the compute stream. The device runs behind the host, so the clock reads an instance after its end.
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
  /// Seconds on the executor's clock.
  struct Span {
    double ready = 0;  ///< the device has come to the pass; from here to `start` it waits for the pass's bytes
    double start = 0, end = 0;
  };
  struct Total {
    std::uint64_t passes = 0;
    double seconds = 0;
  };

  /// `compute`: the stream of the passes; the constructor waits for it. All references must outlive the object.
  PassClock(const plan::Schedule& schedule, device::Device& device, device::Stream compute, const Clock& clock);

  /// Begins an instance that has passes.
  void begin_instance(std::uint64_t number);
  /// Marks the place before a pass: the stream waits for its bytes next.
  void reach_pass(plan::Index pass);
  /// Marks the start of a pass: the caller issues its work next.
  void begin_pass(plan::Index pass);
  /// Marks the end of a pass: the caller has issued all of its work.
  void end_pass(plan::Index pass);
  /// Ends the instance: it has no more passes.
  void end_instance();

  /// Spans of an instance by pass; a pass that did not run has 0, 0. Empty until the device has run the whole instance,
  /// and for instances older than the last kKept.
  [[nodiscard]] std::vector<Span> read_spans(std::uint64_t number);
  /// Totals by kind of pass over all instances that the device has run.
  [[nodiscard]] std::vector<Total> read_totals();

 private:
  static constexpr std::size_t kKept = 3;  ///< instances: a timeline shows the last but one while the next is issued

  struct Events {
    device::Event ready = 0, start = 0, end = 0;
  };
  struct Instance {
    std::uint64_t number = ~std::uint64_t{0};
    std::vector<Events> events;  ///< by pass
    std::vector<plan::Index> issued;
    bool is_ended = false, is_read = false;
    std::vector<Span> spans;
  };

  /// The instance that is `age` instances older than the newest.
  [[nodiscard]] Instance& instance(std::uint64_t age = 0) { return instances_[(newest_ + kKept - age) % kKept]; }
  [[nodiscard]] bool is_done(const Instance& instance);
  void read(Instance& instance);  // locked
  void read_all_done();           // locked

  const plan::Schedule& schedule_;
  device::Device& device_;
  const device::Stream compute_;

  std::mutex mutex_;  ///< guards what follows
  std::uint64_t newest_ = 0;
  std::array<Instance, kKept> instances_;
  device::Event anchor_;  ///< the device reached it at `anchor_seconds_`
  double anchor_seconds_ = 0;
  std::vector<Total> totals_;  ///< by kind
};

}  // namespace spillway::execute
