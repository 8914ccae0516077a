// How many layers keep or spill what autograd saves of them, instead of having backward compute it again.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "spillway/plan/comparison.h"
#include "spillway/plan/problem.h"

namespace spillway::plan {

/// Layers that the caller asked not to recompute; none: the search chooses.
[[nodiscard]] std::optional<std::size_t> read_requested_layers(const Problem& problem);

/// Numbers of layers that serve so many that were asked: all of them keep, or where layers may spill, shares of them
/// do.
[[nodiscard]] std::vector<SavedLayers> values_of(const Problem& problem, std::size_t layers);

/// Compares `decisions` with other layers, and returns those that fit. Fewer blocks live on the device where these
/// layers take their room, and where that does not fit, none.
std::optional<Decisions> add_layers(const Problem& problem, Decisions decisions, const SavedLayers& layers,
                                    Comparison& comparison);

/// Compares numbers of layers that keep or spill their saved activations, beside the decisions of `from`, whose layers
/// all recompute: as many as have room keep, and where these or a single one are faster, half of them, and so on while
/// that is faster, and some between the best and the next; and where layers may spill, as many do beside it, and beside
/// none, as the paths have time for. Nothing goes to a path where everything else has room in memory, unless the budget
/// says what steps survive.
void compare_saved_activations(const Problem& problem, const Decisions& from, Comparison& comparison,
                               const DecisionSearch& below);

/// Searches the rows of `below` beside each of the values that serve the layers that were asked for, until one has room
/// for what else is to stay.
void compare_requested_layers(const Problem& problem, const Decisions& from, Comparison& comparison,
                              const DecisionSearch& below);

/// Numbers of layers around those of `from`.
[[nodiscard]] std::vector<Decisions> near_saved_activations(const Problem& problem, const Decisions& from);

/// True if nothing keeps the requested layers from spilling, or none was requested.
[[nodiscard]] bool can_keep_asked(const Problem& problem);
/// Throws Error(does_not_fit) for the layers that were asked to keep, with what would fit, of which the numbers are
/// those of plans that `choose` makes.
[[noreturn]] void refuse_keeping(const Problem& problem, const std::function<Plan(const Problem&)>& choose);

/// The choice and its reason, for people. `saved`: of the budget.
[[nodiscard]] std::string saved_words(const Plan& plan, const SavedActivations& saved);

}  // namespace spillway::plan
