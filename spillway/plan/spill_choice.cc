#include "spillway/plan/spill_choice.h"

#include <algorithm>
#include <cmath>

#include "spillway/base/error.h"

namespace spillway::plan {
namespace {

/// The value with three digits.
double to_digits(double value) {
  if (value <= 0) return 0;
  const auto scale = std::pow(10.0, 2 - std::floor(std::log10(value)));
  return std::round(value * scale) / scale;
}

bool can_leave(const Budget& budget) {
  return budget.saved_activations.spill != Spill::never && budget.saved_activations.spilled_token_bytes > 0 &&
         !budget.saved_activations.on_device;
}

}  // namespace

SpillCost spill_cost(const Problem& problem) {
  const auto& rates = problem.rates;
  if (!can_leave(problem.budget)) return {};
  const auto bytes = static_cast<double>(spilled_bytes(problem.description, problem.budget.saved_activations));
  const auto mixed = problem.budget.has_path() ? rates.storage().mixed : 0;
  return {
      .path_seconds = mixed > 0 ? 2 * bytes / mixed : 0,
      .copy_seconds = rates.copy > 0 && !problem.budget.device ? bytes / rates.copy : 0,
      .recompute_seconds = std::max(0.0, rates.forward + rates.backward - rates.kept_forward - rates.kept_backward)};
}

bool can_spill(const Budget& budget) {
  return can_leave(budget) && budget.has_path();
}

bool can_lie_aside(const Budget& budget) {
  return can_leave(budget) && (budget.device || budget.nodes.size() > 1);
}

std::vector<TierId> homes_of_spilled(const Budget& budget) {
  std::vector<TierId> out;
  if (can_spill(budget)) out.emplace_back();
  if (!can_lie_aside(budget)) return out;
  const auto tiers = std::max<std::size_t>(1, budget.nodes.size());
  for (std::size_t tier = budget.device ? 0 : 1; tier < tiers; ++tier) {
    out.push_back({TierKind::host, static_cast<std::uint16_t>(tier)});
  }
  return out;
}

std::size_t worth_spilling(const SpillCost& cost, const Simulation& plan, std::size_t layers) {
  const auto idle = plan.step_seconds - plan.transfer_seconds;
  const auto saves = cost.recompute_seconds - cost.copy_seconds;
  if (layers == 0 || saves <= 0 || cost.path_seconds <= 0 || idle <= cost.path_seconds) return 0;
  const auto most = idle / (cost.path_seconds + saves);
  return std::clamp<std::size_t>(static_cast<std::size_t>(std::min(most, static_cast<double>(layers))), 1, layers);
}

std::vector<std::size_t> shares_to_spill(std::size_t layers) {
  constexpr std::size_t kParts = 4;
  std::vector<std::size_t> out;
  for (std::size_t part = 0; part <= kParts; ++part) {
    const auto share = layers * part / kParts;
    if (out.empty() || out.back() != share) out.push_back(share);
  }
  return out;
}

std::string spill_words(const Plan& plan, const Budget& budget) {
  const auto& saved = budget.saved_activations;
  if (saved.spill == Spill::never || saved.spilled_token_bytes <= 0) return "";
  if (saved.on_device) return "only layers that compute in host memory, or on the simulated device, spill";
  if (!budget.has_path() || plan.decisions.layers.home.in_memory()) return "";
  const auto& cost = plan.spill_cost;
  if (cost.path_seconds <= 0) return "nobody knows how fast the paths are";
  const bool alone = plan.path_bytes == 0 && !budget.durability;
  const auto* none = alone ? "; nothing else goes to a path" : "; a step would hardly be shorter with it";
  return text("of a layer it takes ", to_digits(cost.path_seconds), " s of the paths and ",
              to_digits(cost.copy_seconds), " s of compute, where computing it again takes ",
              to_digits(cost.recompute_seconds), " s", plan.spilling.empty() ? none : "");
}

}  // namespace spillway::plan
