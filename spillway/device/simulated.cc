#include "spillway/device/simulated.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <optional>
#include <random>
#include <thread>

#include "spillway/base/error.h"
#include "spillway/base/thread.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/thread.h"

namespace spillway::device {
namespace {

using Clock = std::chrono::steady_clock;

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

/// What works at a rate, one thing after the other whatever streams they are in: a direction of the link, the updates.
class Link {
 public:
  explicit Link(double rate) : rate_(rate) {}

  /// When so much, bytes or elements, that begins now has ended. `most`: a rate that holds it down; 0 = none does.
  Clock::time_point end_of(std::uint64_t amount, double most = 0) {
    const std::lock_guard lock(mutex_);
    free_ = std::max(free_, Clock::now());
    const auto rate = most > 0 && (rate_ <= 0 || most < rate_) ? most : rate_;
    if (rate > 0) free_ += seconds(static_cast<double>(amount) / rate);
    return free_;
  }

 private:
  const double rate_;
  std::mutex mutex_;
  Clock::time_point free_;
};

/// How often an event was recorded, and how many of these have been reached.
struct EventState {
  std::uint64_t recorded = 0, reached = 0;
  Clock::time_point when;  ///< it was reached last
};

class SimulatedDevice final : public Simulated {
 public:
  explicit SimulatedDevice(const SimulatedOptions& options)
      : Simulated(options.piece),
        options_(options),
        links_{Link(options.to_device), Link(options.from_device)},
        updates_(options.update) {}

  ~SimulatedDevice() override {
    end_staging();
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (auto& stream : streams_) {
      if (stream.thread.joinable()) stream.thread.join();
    }
  }

  [[nodiscard]] std::string name() const override { return "simulated"; }
  [[nodiscard]] std::optional<int> node() const override { return options_.node; }
  [[nodiscard]] bool separate() const noexcept override { return true; }
  [[nodiscard]] bool host_reads() const noexcept override { return true; }

  [[nodiscard]] Stream make_stream() override {
    const std::lock_guard lock(mutex_);
    const auto number = static_cast<Stream>(streams_.size());
    auto& stream = streams_.emplace_back();
    stream.random.seed(options_.seed * 7919 + number);
    stream.thread = start_thread([this, &stream, number] { serve(stream, number); });
    return number;
  }

  [[nodiscard]] Stream adopt_stream(void*) override {
    const std::lock_guard lock(mutex_);
    streams_.emplace_back();
    return static_cast<Stream>(streams_.size() - 1);
  }

  [[nodiscard]] Event make_event() override {
    const std::lock_guard lock(mutex_);
    events_.emplace_back();
    return static_cast<Event>(events_.size() - 1);
  }

  void fill(Stream stream, std::byte* to, std::uint8_t value, Bytes bytes) override {
    call(stream, [=] { std::memset(to, value, bytes); });
  }

  void run(Stream stream, const Work& work) override {
    const auto* const update = std::get_if<Update>(&work);
    call(stream, [this, work, elements = update != nullptr ? update->span.n : 0] {
      const auto end = elements > 0 ? updates_.end_of(elements) : Clock::time_point();
      compute(work, parallel_for());
      if (end > Clock::now()) std::this_thread::sleep_until(end);
    });
  }

  void call(Stream stream, std::function<void()> work) override { add(stream, {.work = std::move(work)}); }

  void limit(std::span<const std::byte> host, double to_device, double from_device) override {
    limits_.push_back({host, {to_device, from_device}});
  }

  void do_record(Event event, Stream stream) override {
    std::uint64_t turn = 0;
    {
      const std::lock_guard lock(mutex_);
      turn = ++events_[event].recorded;
    }
    add(stream, {.reaches = event, .turn = turn});
  }

  void do_wait(Stream stream, Event event) override {
    std::uint64_t turn = 0;
    {
      const std::lock_guard lock(mutex_);
      turn = events_[event].recorded;
    }
    add(stream, {.awaits = event, .turn = turn});
  }

  [[nodiscard]] Event make_timed_event() override { return make_event(); }

  [[nodiscard]] double seconds_between(Event first, Event last) override {
    const std::lock_guard lock(mutex_);
    return std::chrono::duration<double>(events_[last].when - events_[first].when).count();
  }

  [[nodiscard]] bool do_done(Event event) override {
    const std::lock_guard lock(mutex_);
    throw_failure();
    return events_[event].reached >= events_[event].recorded;
  }

  void do_synchronise(Event event) override {
    std::unique_lock lock(mutex_);
    const auto turn = events_[event].recorded;
    changed_.wait(lock, [&] { return failure_ || events_[event].reached >= turn; });
    throw_failure();
  }

  void do_synchronise() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return std::ranges::all_of(streams_, [](const auto& stream) { return stream.work.empty() && !stream.busy; });
    });
    throw_failure();
  }

 private:
  /// One operation of a stream: one of the three.
  struct Operation {
    std::function<void()> work = {};
    std::optional<Event> reaches = {}, awaits = {};
    std::uint64_t turn = 0;  ///< of the event
  };
  /// Host memory that copies reach at these rates at most, by direction.
  struct Limit {
    std::span<const std::byte> host;
    double rates[2] = {};
  };
  struct StreamState {
    std::thread thread;  ///< none: it is the caller's
    std::deque<Operation> work;
    bool busy = false;
    std::mt19937_64 random;
  };

  std::span<std::byte> do_allocate(Bytes bytes) override {
    if (bytes > options_.memory) {
      throw Error(ErrorCode::does_not_fit, text("the simulated device has ", human(options_.memory), " of memory, and ",
                                                human(bytes), " are asked of it"));
    }
    mapping_ = std::make_unique<sys::Mapping>(bytes);
    std::memset(mapping_->span().data(), kPoison, bytes);
    return mapping_->span();
  }

  std::string do_register(std::span<std::byte>) override {
    return options_.registers ? std::string() : "the simulated device was told to refuse it";
  }
  void do_unregister(std::span<std::byte>) noexcept override {}

  std::span<std::byte> staging_memory(Bytes bytes) override {
    return staging_.emplace_back(std::make_unique<sys::Mapping>(bytes))->span();
  }

  void issue(Stream stream, Direction direction, std::byte* to, const std::byte* from, Bytes bytes) override {
    call(stream, [this, direction, to, from, bytes] {
      std::memset(to, kPoison, bytes);
      auto& link = links_[static_cast<std::size_t>(direction)];
      const auto* const host = direction == Direction::to_device ? from : to;
      const auto there = link.end_of(bytes, limit_of(host, direction)) + seconds(options_.latency);
      if (there > Clock::now()) std::this_thread::sleep_until(there);
      std::memcpy(to, from, bytes);
    });
  }

  /// The rate that holds down copies that begin at this byte; 0 = none does.
  [[nodiscard]] double limit_of(const std::byte* host, Direction direction) const {
    for (const auto& it : limits_) {
      const bool within = host >= it.host.data() && host < it.host.data() + it.host.size();
      if (within) return it.rates[static_cast<std::size_t>(direction)];
    }
    return 0;
  }

  void add(Stream stream, Operation operation) {
    {
      const std::lock_guard lock(mutex_);
      auto& it = streams_[stream];
      if (it.thread.joinable()) {
        it.work.push_back(std::move(operation));
        changed_.notify_all();
        return;
      }
    }
    run(operation);
    throw_failure_now();
  }

  /// The thread of a stream.
  void serve(StreamState& stream, Stream number) {
    sys::enter_service_thread(text("sim-stream-", number));
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || !stream.work.empty(); });
      if (stop_) return;
      auto operation = std::move(stream.work.front());
      stream.work.pop_front();
      stream.busy = true;
      lock.unlock();
      delay(stream);
      run(operation);
      lock.lock();
      stream.busy = false;
      changed_.notify_all();
    }
  }

  void delay(StreamState& stream) {
    if (options_.seed == 0) return;
    // Most operations are not held up, so that streams get far ahead of each other.
    if (stream.random() % 3 != 0) return;
    std::this_thread::sleep_for(seconds(std::uniform_real_distribution<>(0, options_.longest_delay)(stream.random)));
  }

  void run(Operation& operation) {
    if (operation.work) {
      try {
        operation.work();
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        changed_.notify_all();
      }
      return;
    }
    std::unique_lock lock(mutex_);
    if (operation.awaits) {
      changed_.wait(lock, [&] { return stop_ || failure_ || events_[*operation.awaits].reached >= operation.turn; });
      return;
    }
    auto& event = events_[*operation.reaches];
    event.reached = std::max(event.reached, operation.turn);
    event.when = Clock::now();
    changed_.notify_all();
  }

  void throw_failure() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  void throw_failure_now() {
    const std::lock_guard lock(mutex_);
    throw_failure();
  }

  const SimulatedOptions options_;
  Link links_[2];
  Link updates_;
  std::vector<Limit> limits_;  ///< by range
  std::unique_ptr<sys::Mapping> mapping_;
  std::vector<std::unique_ptr<sys::Mapping>> staging_;

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::deque<StreamState> streams_;
  std::deque<EventState> events_;
  std::exception_ptr failure_;
  bool stop_ = false;
};

}  // namespace

std::unique_ptr<Simulated> make_simulated(const SimulatedOptions& options) {
  return std::make_unique<SimulatedDevice>(options);
}

}  // namespace spillway::device
