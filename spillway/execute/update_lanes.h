// The lanes of updates and of background refits: for each NUMA node a thread that runs what is ready, the earliest
// deadline first, and helpers that share an update's tiles with it; beside them the caller, while it waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "spillway/execute/clock.h"
#include "spillway/execute/pace.h"
#include "spillway/execute/update_queue.h"
#include "spillway/execute/update_work.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {

/// Who updates the chunks of one NUMA node.
struct UpdateLane {
  unsigned threads = 1;          ///< that share an update, beside the caller while it waits; at least 1
  std::optional<int> near = {};  ///< NUMA node whose CPUs they stay on
  double limit = 0;              ///< elements per second at most (pace.h), by these threads alone; 0: none
};

/// Work that an update lane has done.
struct Updated {
  std::uint64_t elements = 0;
  double seconds = 0;  ///< at work, its rests for the pace included
};

/// Who updates. With cores of their own, each has a thread and updates run as soon as they can. Without, they share the
/// caller's: one thread runs beside it what reads wait for, and what can wait (plan::idle_priority) runs while the
/// caller waits, with its help and that of a thread on each further core.
struct UpdateCores {
  unsigned own = 0;
  unsigned shared = 1;                 ///< the caller's; matters when `own` is 0
  std::vector<UpdateLane> nodes = {};  ///< by unit of the schedule's update tasks; empty: one lane has all threads
  /// A GPU computes what the caller launches. The threads have a lower priority than the caller and stay off the
  /// physical core that it is on, and the caller takes no tiles.
  bool spare_caller = false;
};

class UpdateLanes {
 public:
  /// Who makes tasks ready. Every call comes with the lock held.
  class Client {
   public:
    virtual void update_begins(const Start& start, double now) = 0;
    /// `lane`: its number, below count(). May let go of the lock, and returns with it held.
    virtual void update_ended(const Start& start, double now, std::size_t lane, std::unique_lock<std::mutex>& lock) = 0;
    /// There are tiles: a caller that waits may take some (help()).
    virtual void tiles_begin() = 0;

   protected:
    ~Client() = default;
  };

  /// `mutex`: the client's lock. Starts the threads; they are stopped by stop(). All references must outlive it. Throws
  /// what starting a thread does, with none left.
  UpdateLanes(const plan::Schedule& schedule, UpdateWork& work, UpdateCores cores, const Clock& clock,
              std::mutex& mutex, Client& client);
  ~UpdateLanes() { stop(); }
  UpdateLanes(const UpdateLanes&) = delete;
  UpdateLanes& operator=(const UpdateLanes&) = delete;

  /// Waits for what is under way; what has not begun never does. Without the lock. Once or more.
  void stop();
  [[nodiscard]] std::size_t count() const noexcept { return lanes_.size(); }

  // Calls with the lock held:

  /// To the lane that the task is for.
  void push(Start start);
  /// From now on nothing begins.
  void halt() noexcept { halted_ = true; }
  /// From when the caller waits what is of idle priority may begin; until it does not.
  void caller_waits(bool waits);
  /// Works as a thread of a lane when one has tiles that are not taken; returns whether there were any. Does nothing
  /// with UpdateCores::spare_caller.
  bool help(std::unique_lock<std::mutex>& lock);
  /// While the caller waits: nothing is under way, and nothing is ready to begin.
  [[nodiscard]] bool idle() const noexcept;
  /// Takes an early update back that has not begun, if there is one.
  [[nodiscard]] std::optional<Start> take_early();
  /// An early update is under way.
  [[nodiscard]] bool early_active() const noexcept;
  /// Work of the lanes, by unit of the schedule's update tasks.
  [[nodiscard]] std::vector<Updated> updated() const;

 private:
  enum class Part : std::uint8_t { save, update, refit };  ///< of an update, one after the other; of a refit
  /// Tiles that several threads take.
  struct Tiles {
    bool busy = false;
    plan::Index chunk = plan::kNone;
    std::size_t count = 0;
    Part part = Part::update;
    bool early = false;
    std::size_t number = 0;  ///< of the part, of an update or a refit
    bool last = true;        ///< of the parts
    std::size_t inside = 0;  ///< threads at work in them
  };

  struct Lane {
    UpdateLane options;
    std::size_t number = 0;
    Updated done;
    UpdateQueue queue;
    Tiles active;
    std::atomic<std::size_t> next_tile{0};
    bool busy = false;   ///< from when a task begins until the client has been told of its end
    bool early = false;  ///< the update under way is an early one
    Pace pace;
    std::mutex pace_mutex;
    std::condition_variable wake, helper_wake;
    std::thread thread;
    std::vector<std::thread> helpers;
  };

  using Lock = std::unique_lock<std::mutex>;

  void add(const UpdateLane& options);
  void start_threads(Lane& lane);
  [[nodiscard]] Lane& lane_of(const plan::Task& task);
  void stay_where(const Lane& lane) const;
  void run(Lane& lane);
  [[nodiscard]] bool may_begin(const Lane& lane) const noexcept;
  void update(Lock& lock, Lane& lane, plan::Index chunk, bool early);
  void refit(Lock& lock, Lane& lane, plan::Index chunk);
  void run_tiles(Lock& lock, Lane& lane, Tiles tiles);
  void take_tiles(Lane& lane, const Tiles& tiles);
  void wait_for_pace(Lane& lane, const Tiles& tiles, double began);
  void run_helper(Lane& lane);
  [[nodiscard]] bool helpers_may(const Lane& lane) const noexcept;
  [[nodiscard]] static bool has_tiles(const Lane& lane) noexcept;
  void help_lane(Lane& lane, Lock& lock);

  const plan::Schedule& schedule_;
  UpdateWork& work_;
  const Clock& clock_;
  std::mutex& mutex_;
  Client& client_;
  std::vector<bool> idle_priority_;           ///< by task: runs only while the caller waits; empty: none
  std::vector<std::unique_ptr<Lane>> lanes_;  ///< by unit; then, where there are refits, that of these
  bool refits_ = false;
  std::optional<int> spared_cpu_;  ///< the caller's, whose core the threads stay off; none: the caller takes tiles
  bool caller_waits_ = false, halted_ = false, stop_ = false;
};

}  // namespace spillway::execute
