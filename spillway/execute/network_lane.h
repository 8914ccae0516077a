// The lane of the network: tasks of a schedule that move bytes between processes. All processes begin them in one
// order, which follows from the schedule, so that none waits for another in a circle.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "spillway/base/mutex.h"
#include "spillway/execute/clock.h"
#include "spillway/execute/update_lanes.h"
#include "spillway/network/port.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {

/// Transfers of the network's tasks. The lane passes their exceptions to whoever waits.
class NetworkWork {
 public:
  virtual ~NetworkWork() = default;
  /// The messages of a task whose turn it is.
  virtual std::vector<network::Message> messages(const plan::Task& task) = 0;
  /// They have arrived and left. Called for one task at a time, where it adds() by a thread of the lane's, else by any.
  virtual void arrived(const plan::Task& task) = 0;
  /// True if arrived() adds up received sums. The thread that reports arrivals had better begin the next transfer
  /// first.
  [[nodiscard]] virtual bool adds(const plan::Task& task) const = 0;
};

/// Transport between this process and others, if there are any.
struct OtherProcesses {
  network::Port* port = nullptr;
  NetworkWork* work = nullptr;
};

/// A task that other processes may wait for.
struct Turn {
  Start start;
  double seconds = 0;  ///< since it is its turn, and nothing before it is under way
};

class NetworkLane {
 public:
  /// Told of each task that was begun, once, by any thread: that it has ended, or why it failed.
  using Ended = std::function<void(const Start& start, const std::exception_ptr& error)>;

  /// All references must outlive it.
  NetworkLane(const plan::Schedule& schedule, network::Port& port, NetworkWork& work, Ended ended);
  ~NetworkLane();
  NetworkLane(const NetworkLane&) = delete;
  NetworkLane& operator=(const NetworkLane&) = delete;

  /// An instance begins; nothing of the one before is left to begin.
  void begin(std::uint64_t instance);
  /// Marks a task whose needs have ended. It begins with start(), when it is its turn.
  void ready(const Start& start);
  /// The instance does not run it.
  void skip(const Start& start);
  /// Begins the tasks whose turn it is.
  void start();
  /// No further task begins.
  void halt();
  /// No further task begins; waits for the transfers that are under way. Those with a peer that is gone end when the
  /// port is closed.
  void stop();
  /// Every task of the newest instance has ended or was skipped.
  [[nodiscard]] bool ended() const;
  /// The task whose turn it is while what it needs of this process is not there. Empty: there is none, or what is under
  /// way waits for other processes.
  [[nodiscard]] std::optional<Turn> late() const;

 private:
  enum class State : std::uint8_t { waits, ready, skipped };
  [[nodiscard]] bool take(Start& start);
  void arrived(const Start& start, const std::exception_ptr& error);
  void end(const Start& start, std::exception_ptr error);
  void add_up();

  const plan::Schedule& schedule_;
  network::Port& port_;
  NetworkWork& work_;
  const Ended ended_;
  std::vector<std::size_t> place_;  ///< by task: in the order
  Mutex order_;                     ///< held by whoever begins tasks; taken before `mutex_`
  Mutex arrivals_;                  ///< held while work_.arrived() runs
  mutable Mutex mutex_;
  Condition idle_;
  std::uint64_t instance_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  std::vector<State> states_ SPILLWAY_GUARDED_BY(mutex_);  ///< by place
  std::size_t next_ SPILLWAY_GUARDED_BY(mutex_) = 0;       ///< place of the task whose turn it is
  std::size_t under_way_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  std::size_t left_ SPILLWAY_GUARDED_BY(mutex_) = 0;  ///< of the instance, that have not ended
  bool halted_ SPILLWAY_GUARDED_BY(mutex_) = false;
  const Clock clock_;
  double since_ SPILLWAY_GUARDED_BY(mutex_) = 0;  ///< when the task's turn came, or the last one before it ended
  Condition came_;
  std::deque<Start> sums_ SPILLWAY_GUARDED_BY(mutex_);  ///< that have come and are to be added
  bool over_ SPILLWAY_GUARDED_BY(mutex_) = false;
  std::thread adder_;
};

}  // namespace spillway::execute
