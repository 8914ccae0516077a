// The schedule on the machine: lanes that run its tasks, and the caller who computes.
//
// The caller is the compute lane: begin() starts an instance, next() waits for a visit's bytes, done() lets its
// followers go. Reads and writes go to the paths' own threads, updates to the lane of the NUMA node that they work
// on, whose threads the caller helps while it waits. No lock is held while anything runs. The first error of any lane
// is kept and thrown by the next wait.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "spillway/execute/copies.h"
#include "spillway/execute/pace.h"
#include "spillway/execute/store.h"
#include "spillway/execute/waits.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {

/// The arithmetic of an update, in tiles that several threads may take. Calls must not throw.
class UpdateWork {
 public:
  virtual ~UpdateWork() = default;
  virtual std::size_t slices(plan::Index chunk) const = 0;  ///< of the bytes that an early update changes
  /// Copies a slice to where the schedule has room for it: all of them before prepare(), when the update is early.
  virtual void save(plan::Index chunk, std::size_t slice) = 0;
  virtual void prepare(plan::Index chunk, bool early) = 0;  ///< once, before the tiles
  /// Parts of the update: all tiles of one end before any of the next.
  virtual std::size_t parts(plan::Index /*chunk*/) const { return 1; }
  virtual std::size_t tiles(plan::Index chunk, std::size_t part) const = 0;
  virtual void run(plan::Index chunk, std::size_t part, std::size_t tile, bool early) = 0;
  virtual void finish(plan::Index /*chunk*/, bool /*early*/) {}  ///< once, after them

  // What a visit has left to learn of a chunk that learns in a subspace; by default nothing.
  static constexpr unsigned kFitParts = 3;
  virtual bool fits(plan::Index /*chunk*/) const { return false; }
  virtual void begin_fit(plan::Index /*chunk*/) {}  ///< once, before the tiles of the first part
  virtual std::size_t fit_tiles(plan::Index /*chunk*/, unsigned /*part*/) const { return 0; }
  virtual void run_fit(plan::Index /*chunk*/, unsigned /*part*/, std::size_t /*tile*/) {}
  virtual void end_fit(plan::Index /*chunk*/) {}  ///< once, after all
};

/// Who updates the chunks of one NUMA node.
struct UpdateLane {
  unsigned threads = 1;          ///< that share an update, beside the caller while it waits; at least 1
  std::optional<int> near = {};  ///< NUMA node whose processors they stay on
  double limit = 0;              ///< elements per second at most (pace.h), by these threads alone; 0: none
};

/// What an update lane has done.
struct Updated {
  std::uint64_t elements = 0;
  double seconds = 0;  ///< at work, its rests for the pace included
};

/// Which phases an instance runs, and of what its transfers are.
struct Mode {
  bool update = false;  ///< updates are pending
  bool visits = true;   ///< forward and head_loss
  bool backward = true;
  bool early = false;         ///< chunks with room for their old version are updated during backward
  bool kept = false;          ///< of the pending updates, those that were done early are not done again
  bool stored = false;        ///< weights were stored since the instance before, beside updates
  std::uint64_t updated = 0;  ///< the step whose updates are pending: version of weights and states
  std::uint64_t updates = 0;  ///< count of updates, these included
  std::uint64_t step = 0;     ///< this step: version of gradients
};

/// Who updates. With cores of their own, each has a thread and updates run as soon as they can. Without, they share the
/// caller's: one thread runs beside it what reads wait for, and what can wait (plan::idle_priority) runs while the
/// caller waits, with its help and that of a thread on each further core.
struct UpdateCores {
  unsigned own = 0;
  unsigned shared = 1;                 ///< the caller's; matters when `own` is 0
  std::vector<UpdateLane> nodes = {};  ///< by unit of the schedule's update tasks; empty: one lane has all threads
};

/// Where visits compute, when that is not in host memory.
struct ComputeDevice {
  device::Device* device = nullptr;  ///< with its arena; null: the host
  device::Stream stream = 0;         ///< of the caller's work
  DeviceUpdates* updates = nullptr;  ///< matters with a device
};

class Executor {
 public:
  /// `store` may be null when no task is a transfer. All references must outlive the executor.
  Executor(const plan::Schedule& schedule, std::byte* arena, Store* store, UpdateWork& work, UpdateCores cores = {},
           ComputeDevice device = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Starts an instance; the one before must have had all its visits. Waits until the one before that has ended.
  void begin(Mode mode);
  /// The next visit that this instance runs, when its bytes are there; null when it has no more. Throws a lane's error.
  const plan::Visit* next();
  /// Ends the visit that next() returned; on a device with memory of its own: all its work has been given to the
  /// stream.
  void done();
  /// After the last visit: waits for the early update under way; those that have not begun are left to the next
  /// instance. Returns the chunks that were updated early, until the next begin(). Throws a lane's error.
  const std::vector<plan::Index>& end_early();
  /// Waits until every task of every instance has ended. Throws a lane's error.
  void drain();

  /// What the caller waited for in next() so far.
  [[nodiscard]] const Waits& waits() const noexcept { return waits_; }
  /// By unit of the schedule's update tasks.
  [[nodiscard]] std::vector<Updated> updated() const;
  /// Times of the tasks of the newest training step that has wholly ended; evaluations and flushes do not count.
  [[nodiscard]] std::vector<Times> last_times() const;
  [[nodiscard]] double now() const;

 private:
  using Index = plan::Index;

  /// Weights on the host that the device has older copies of, by what has changed them.
  struct Changed {
    bool updated = true, stored = true;
  };

  struct Bank {
    std::uint64_t instance = 0;
    bool open = false;  ///< has tasks that have not ended
    Mode mode;
    std::size_t left = 0;  ///< tasks that have not ended
    std::vector<std::uint32_t> waiting;
    std::vector<std::uint8_t> ended;
    std::vector<std::uint8_t> kept;  ///< by chunk: its pending update was done early
    Changed sends;                   ///< of what stays on a device: what has changed
    std::vector<Times> times;
  };

  struct Start {
    std::uint64_t instance = 0;
    Index task = plan::kNone;
  };

  struct UpdateEntry {
    std::uint64_t deadline = 0;
    Start start;
    bool operator<(const UpdateEntry& other) const { return deadline > other.deadline; }
  };

  enum class Part : std::uint8_t { save, update, fit };  ///< of an update, one after the other; of a fit
  /// Tiles that several threads take.
  struct Tiles {
    bool busy = false;
    Index chunk = plan::kNone;
    std::size_t count = 0;
    Part part = Part::update;
    bool early = false;
    std::size_t number = 0;  ///< of the part, of an update or a fit
    bool last = true;        ///< of the parts
    std::size_t inside = 0;  ///< threads at work in them
  };

  /// A lane of updates, or of fits.
  struct Updates {
    UpdateLane options;
    Updated done;
    std::vector<UpdateEntry> ready, when_idle;  ///< heaps; what is of idle priority runs only while the caller waits
    Tiles active;
    std::atomic<std::size_t> next_tile{0};
    bool early = false;  ///< the update under way is an early one
    Pace pace;
    std::mutex pace_mutex;
    std::vector<Start> transfers;
    std::condition_variable wake, helper_wake;
    std::thread thread;
    std::vector<std::thread> helpers;
  };

  /// Of tasks that bring a visit's weights: an update needs them, too.
  [[nodiscard]] bool is_for_update(const plan::Task& task) const;
  [[nodiscard]] bool fits(const plan::Task& task) const;
  [[nodiscard]] bool runs(const Mode& mode, const plan::Task& task) const;
  [[nodiscard]] bool runs(const Bank& bank, const plan::Task& task) const;
  void open_bank(Bank& bank, Mode mode);           // locked
  void drop_early(std::vector<Start>& transfers);  // locked
  Bank& bank(std::uint64_t instance) { return banks_[instance % banks_.size()]; }
  void end_task(Start start, std::vector<Start>& transfers);                                 // locked
  void make_ready(Start start, std::vector<Start>& transfers, std::vector<Start>& skipped);  // locked
  void launch(std::vector<Start>& transfers);                                                // unlocked
  void launch_transfer(const Start& start, const plan::Task& task);
  void fail(std::exception_ptr error);  // locked
  void throw_failure();                 // locked
  static void transfer_done(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept;
  void make_lanes(std::vector<UpdateLane> lanes, unsigned fit_threads);
  void start_threads(Updates& lane);
  void stop_lanes();
  static void push(std::vector<UpdateEntry>& heap, UpdateEntry entry);  // locked
  [[nodiscard]] bool may_update(const Updates& lane) const noexcept;    // locked
  Start pop_update(Updates& lane);                                      // locked
  [[nodiscard]] bool helpers_may(const Updates& lane) const noexcept;   // locked
  template <class Done>
  void help_until(std::unique_lock<std::mutex>& lock, std::condition_variable& wake, const Done& is_done);
  [[nodiscard]] Updates& lane_of(const plan::Task& task);
  void update_lane(Updates& lane);
  void update(std::unique_lock<std::mutex>& lock, Updates& lane, Index chunk, bool early);
  void fit(std::unique_lock<std::mutex>& lock, Updates& lane, Index chunk);
  void stay_where(const Updates& lane) const;
  void run_tiles(std::unique_lock<std::mutex>& lock, Updates& lane, Tiles tiles);
  void take_tiles(Updates& lane, const Tiles& tiles);
  void wait_for_pace(Updates& lane, Index chunk, std::size_t tiles, double began);
  void helper_lane(Updates& lane);
  [[nodiscard]] static bool has_tiles(const Updates& lane) noexcept;  // locked
  void help_lane(Updates& lane, std::unique_lock<std::mutex>& lock);
  bool help(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool early_active() const noexcept;  // locked
  void note_wait(Index task, double begin);          // locked

  const plan::Schedule& schedule_;
  std::byte* const arena_;
  Store* const store_;
  UpdateWork& work_;
  const std::chrono::steady_clock::time_point epoch_ = std::chrono::steady_clock::now();
  std::vector<std::vector<Index>> same_, next_;  ///< followers within an instance and in the next
  std::vector<Index> visit_order_;

  mutable std::mutex mutex_;
  std::condition_variable compute_wake_, idle_;
  std::unique_ptr<Copies> copies_;  ///< null: no device with memory of its own
  Changed changed_;                 ///< when the newest instance has ended
  std::array<Bank, 2> banks_;
  std::uint64_t instances_ = 0;  ///< begun so far
  std::size_t visit_ = 0;        ///< next index into schedule_.visits of the newest instance
  std::vector<std::uint8_t> visit_ready_;
  std::vector<bool> idle_priority_;  ///< by task: runs only while the caller waits; empty: none
  bool caller_waits_ = false;
  std::vector<std::unique_ptr<Updates>> updates_;  ///< by unit; then, where there are fits, that of these
  bool fits_ = false;
  std::vector<Index> early_;  ///< chunks updated early in the newest instance
  std::vector<Start> skipped_;
  std::vector<Start> caller_transfers_;  ///< each calling thread has its own
  std::size_t in_flight_ = 0;            ///< transfers handed to the path
  std::exception_ptr failure_;
  bool stop_ = false;
  std::vector<Times> last_times_;
  Waits waits_;
};

}  // namespace spillway::execute
