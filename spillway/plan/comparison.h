// Plans that were compared, each made once for its decisions.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "spillway/plan/coordinate_search.h"
#include "spillway/plan/if_it_fits.h"
#include "spillway/plan/planner.h"

namespace spillway::plan {

/// Steps within this factor count as equally fast. If as many layers keep and spill in two such plans, the plan that
/// moves fewer bytes is better.
inline constexpr double kAsFast = 1.01;
/// Saved activations that spill to a path wear its drives: such a step has to take less than this share of another's.
inline constexpr double kWorthWriting = 0.98;

/// Bytes that a step moves over paths and the link, both ways.
[[nodiscard]] Bytes moved_by(const Plan& plan) noexcept;

/// Seconds of a step, with what wear is worth.
[[nodiscard]] double priced_seconds(const Plan& plan) noexcept;

class Comparison {
 public:
  /// The plan with these decisions. Throws Error(does_not_fit).
  using Make = std::function<Plan(const Decisions&)>;

  /// `start`: the decisions whose refusal is told where no plan fits.
  Comparison(Make make, const Decisions& start) : make_(std::move(make)), start_(start) {}
  /// Forgets all plans, and begins with others.
  void restart(const Decisions& start) { *this = Comparison(std::move(make_), start); }

  /// Seconds of a step with these decisions; none: they do not fit. Makes the plan unless it was made, and lists the
  /// value under `axis`.
  std::optional<double> add(Axis axis, const Decisions& decisions);
  [[nodiscard]] const Decisions& start() const noexcept { return start_; }
  /// Makes the plan and lists it under no axis.
  std::optional<double> add(const Decisions& decisions) { return outcome(decisions).seconds(); }

  /// True if a plan fits.
  [[nodiscard]] bool any() const noexcept { return !plans_.empty(); }
  /// True if the best plan keeps weights of several processes as `decisions` say.
  [[nodiscard]] bool is_led_by(const Decisions& decisions) const {
    return any() && best().decisions.own_weights == decisions.own_weights;
  }
  /// Seconds of the fastest step; infinity while none fits.
  [[nodiscard]] double fastest_seconds() const;
  /// The fastest plan, or one that spares the drives (kWorthWriting). One has to fit.
  [[nodiscard]] const Plan& fastest() const;
  /// The plan with the fewest bytes moved among those within kAsFast of the fastest, with its layers. One plan has to
  /// fit.
  [[nodiscard]] const Plan& best() const;
  /// The plan with these decisions, while it is within kAsFast of the fastest; else null.
  [[nodiscard]] const Plan* find(const Decisions& decisions) const;
  [[nodiscard]] const Decisions& best_values() const { return best().decisions; }
  /// True if the choice on one axis may have changed the best value of another: saved activations take memory.
  [[nodiscard]] bool has_tradeoff() const { return best().decisions.layers != SavedLayers{}; }
  [[nodiscard]] const std::vector<Compared>& listed() const noexcept { return listed_; }

  /// True if more host memory would not change what is compared.
  [[nodiscard]] bool is_ample() const noexcept { return ample_; }
  /// More host memory would change what is compared.
  void want_memory() noexcept { ample_ = false; }
  /// Throws what the plan with the start's decisions was refused with.
  [[noreturn]] void refuse() const;
  /// The best plan with what was compared.
  [[nodiscard]] Plan take() &&;

 private:
  struct Outcome {
    Decisions decisions;
    bool fits = false;
    double step_seconds = 0;
    Bytes moved = 0;

    [[nodiscard]] std::optional<double> seconds() const noexcept {
      return fits ? std::optional(step_seconds) : std::nullopt;
    }
  };
  const Outcome& outcome(const Decisions& decisions);
  [[nodiscard]] Outcome make(const Decisions& decisions);
  [[nodiscard]] bool needs_no_path(const Plan& plan, const Decisions& decisions);

  Make make_;
  Decisions start_;
  std::vector<Outcome> outcomes_;
  std::vector<Plan> plans_;  ///< the fastest, and those within kAsFast of it
  std::vector<Compared> listed_;
  std::optional<Error> refusal_;
  bool device_alone_ = true;    ///< every refusal was the device's
  bool ample_ = true;           ///< host memory refused nothing
  bool has_changes_ = false;    ///< a plan has a copy on the device that takes changes
  bool all_in_memory_ = false;  ///< a plan whose layers all recompute has everything in memory
};

using DecisionSearch = CoordinateSearch<Problem, Decisions, Comparison>;

}  // namespace spillway::plan
