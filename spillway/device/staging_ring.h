// A stream of copies whose host memory is not registered: a thread of the stream's own feeds it, so that nobody else
// waits for the host's part of a copy.
//
// The thread gives the stream its operations in the order in which they were asked for. An operation has ended for the
// host when the stream has it and the bytes of copies from the device up to it are in their places.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <variant>

#include "spillway/device/device.h"
#include "spillway/device/staging.h"

namespace spillway::device {

class StagingRing {
 public:
  /// An operation's number, from 1.
  using Ticket = std::uint64_t;
  /// An operation of a ring; without a ring, none.
  struct Mark {
    StagingRing* ring = nullptr;
    Ticket ticket = 0;
  };

  /// Slots of kGoodCopy bytes: the thread fills or empties one while the link serves the others.
  static constexpr std::size_t kSlots = 4;

  StagingRing(Device& device, Stream stream);
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  /// Returns when everything that the ring was asked for has ended or failed. Nothing is asked for after it; marks stay
  /// true.
  void end() noexcept;

  /// These return at once. `staged`: the transfer's host memory is not registered.
  Ticket copy(const Transfer& transfer, bool staged);
  /// `given` is called by the ring's thread when the record has ended; after a failure it is not called.
  Ticket record(Event event, const Given& given);
  /// `recorded`: the operation of another ring that records the event. The event is not recorded again until the wait
  /// has ended.
  Ticket wait(Event event, const Mark& recorded);

  /// Both throw what failed at an operation or before it.
  [[nodiscard]] bool has_ended(Ticket ticket) const;
  void await(Ticket ticket);
  /// As await(), and returns after a failure as well.
  void settle(Ticket ticket);
  /// Everything that it has been asked for.
  void await_all();

 private:
  struct Copy {
    Transfer transfer;
    bool staged = false;
  };
  struct Record {
    Event event = 0;
    Given given;
  };
  struct Wait {
    Event event = 0;
    Mark recorded;
  };
  using Operation = std::variant<Copy, Record, Wait>;
  struct Notice {
    Ticket ticket = 0;
    Given given;
  };

  Ticket add(const Operation& operation);
  [[nodiscard]] bool has_work() const;  // locked, the thread's own
  void serve();
  void give(const Operation& operation);
  void run(const Copy& copy);
  void run(const Record& record);
  void run(const Wait& wait);
  void land_first();
  void publish();
  void fail();

  Device& device_;
  const Stream stream_;

  // The thread's own.
  Staging staging_;
  Ticket current_ = 0;          ///< the operation that runs, or ran last
  Ticket given_ = 0;            ///< the stream has everything up to this one
  std::deque<Notice> notices_;  ///< of records that have not ended

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable wake_, ended_;
  std::deque<Operation> queue_;
  Ticket asked_ = 0;            ///< the last operation
  Ticket through_ = 0;          ///< everything up to this one has ended
  std::exception_ptr failure_;  ///< of the operation behind `through_` or of a later one
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace spillway::device
