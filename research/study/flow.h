// A fluid simulator: tasks that depend on each other and share what a machine has. Pure and deterministic; no task or
// resource means anything here, so the same call plays any method on any machine.
//
// A task is an amount of work (bytes, elements, operations; seconds when it uses nothing) and what each unit of it
// takes of the resources. Tasks of one lane run one after the other, the earliest deadline first among those that are
// ready; of equals the one added first. Tasks that run at once share: each has the rate it would have alone, times a
// level that rises equally for all until a resource is full (max-min fairness over levels).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway::study {

inline constexpr std::uint32_t kNoLane = ~std::uint32_t{0};

struct FlowResource {
  std::string name;
  double rate = 0;    ///< units per second; > 0
  double shared = 0;  ///< the same while both directions are in use; 0 = rate
};

/// When a task is wanted: of an earlier step first, then by `position` in it.
struct FlowTurn {
  std::uint64_t step = 0, position = 0;  ///< position < 1'000'000
};

/// The share of a resource that one unit of a task's work takes.
struct FlowUse {
  std::uint32_t resource = 0;
  double amount = 1;
  bool back = false;  ///< of two directions the other one: writes of a drive, transfers from a device
};

struct FlowTask {
  double work = 0;  ///< >= 0
  std::vector<FlowUse> uses;
  std::uint32_t lane = kNoLane;  ///< kNoLane: runs as soon as it is ready
  std::uint64_t deadline = 0;
  std::vector<std::uint32_t> needs;  ///< tasks that end first
};

struct FlowTimes {
  double start = 0, end = 0;  ///< seconds
};

struct FlowResult {
  std::vector<FlowTimes> tasks;
  std::vector<double> used;  ///< by resource: units taken in all
  double seconds = 0;        ///< end of the last task
};

/// A machine's resources and a method's tasks.
class Flow {
 public:
  std::uint32_t add_resource(FlowResource resource);
  std::uint32_t add_lane() noexcept { return lanes_++; }
  std::uint32_t add(FlowTask task);
  /// The same; needs that are kNoLane are left out.
  std::uint32_t add(double work, std::vector<FlowUse> uses, std::uint32_t lane, FlowTurn turn,
                    std::vector<std::uint32_t> needs);

  [[nodiscard]] const std::vector<FlowResource>& resources() const noexcept { return resources_; }
  [[nodiscard]] const std::vector<FlowTask>& tasks() const noexcept { return tasks_; }
  [[nodiscard]] std::uint32_t lanes() const noexcept { return lanes_; }

  /// Plays it from the start. Throws Error(bad_input) for a resource without a rate and for a use, need or lane that is
  /// not there, Error(internal) when tasks wait for each other in a circle.
  [[nodiscard]] FlowResult play() const;

 private:
  std::vector<FlowResource> resources_;
  std::vector<FlowTask> tasks_;
  std::uint32_t lanes_ = 0;
};

}  // namespace spillway::study
