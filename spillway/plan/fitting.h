// The inner decisions of a plan, beside its outer ones (decisions.h): their domains are what has room there.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "spillway/plan/coordinate_search.h"
#include "spillway/plan/trial.h"
#include "spillway/plan/units.h"

namespace spillway::plan {

/// Inner decisions.
struct Fitting {
  std::optional<DistributionPolicy> tiers = {};  ///< of host memory; none: there is one
  std::uint32_t level = 0;                       ///< of lookahead (lookahead_at())
  std::size_t kept = 0;                          ///< units that stay in host memory: the most that have room
  std::size_t early = 0;                         ///< chunks that are updated during backward
  std::uint32_t longer = 0;                      ///< levels that memory is left for when all else is decided

  bool operator==(const Fitting&) const = default;
};

/// Input of one inner search. References must outlive it.
struct FittingProblem {
  const Problem& problem;
  const Units& units;
  const Room& room;
  std::uint32_t device_ahead = 0;  ///< passes between a copy to a device and its use
};

/// Inner decisions that were compared, each laid out and simulated once.
class FittingComparison {
 public:
  explicit FittingComparison(const FittingProblem& problem);

  /// Lays a plan out. False if it has no room; the plan before stays then.
  bool lay_out(const Fitting& fitting);
  /// Bytes of the arena that this plan takes. If it has no room, the least that it takes. It has been laid out.
  [[nodiscard]] Bytes arena_bytes(const Fitting& fitting) const;
  /// The simulated step of a plan that has room.
  const Simulation& predict(const Fitting& fitting);
  /// Compares a plan that has room with the best one. True if it is better.
  bool add(const Fitting& fitting);
  /// Makes it the best plan.
  void lead(const Fitting& fitting);
  /// Lists a plan under an axis, unless that value is listed.
  void list(Axis axis, const Fitting& fitting);

  [[nodiscard]] bool any() const noexcept { return best_.has_value(); }
  [[nodiscard]] bool is_led_by(const Fitting& /*start*/) const noexcept { return any(); }
  [[nodiscard]] const Fitting& best_values() const { return *best_; }
  /// True if the best plan has chunks on another tier of host memory than the first.
  [[nodiscard]] bool uses_later_tier() const;
  /// The fastest of the simulated plans with these tiers; none: none has room.
  [[nodiscard]] std::optional<Fitting> fastest_on(const DistributionPolicy& tiers) const;
  /// Chunks that may be updated early beside the other values, in the order in which their gradients are complete.
  [[nodiscard]] const std::vector<Index>& early_order(const Fitting& fitting);

  /// True if everything that was tried had room.
  [[nodiscard]] bool ample() const noexcept { return trial_.ample(); }
  [[nodiscard]] LaidOut take() noexcept { return trial_.take(); }
  /// Values that were listed, those of the best plan marked.
  [[nodiscard]] std::vector<Compared> take_compared();

 private:
  struct Outcome {
    Fitting fitting;
    bool fits = false;
    Bytes arena = 0;  ///< at least, if it does not fit
    std::optional<Simulation> simulation = {};
    Bytes on_paths = 0, on_link = 0;  ///< moved by a step
    bool is_on_later_tier = false;
  };
  [[nodiscard]] const Outcome* find(const Fitting& fitting) const;
  [[nodiscard]] Placement place(const Fitting& fitting);
  [[nodiscard]] bool is_better(const Fitting& one, const Fitting& other);
  [[nodiscard]] std::string describe(Axis axis, const Fitting& fitting);

  const FittingProblem problem_;
  Trial trial_;
  std::vector<Outcome> outcomes_;
  std::optional<Fitting> laid_out_;  ///< in `trial_`
  std::optional<Fitting> best_;
  std::vector<Compared> listed_;
  std::vector<std::pair<Fitting, std::vector<Index>>> orders_;  ///< early_order() by what it is beside
};

using FittingSearch = CoordinateSearch<FittingProblem, Fitting, FittingComparison>;

}  // namespace spillway::plan
