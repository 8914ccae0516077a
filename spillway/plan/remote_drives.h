// Cost of a drive attached to another socket than the device: its bytes cross the link between the CPUs on the way to
// and from the memory by the device.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "spillway/machine/profile.h"
#include "spillway/plan/description.h"

namespace spillway::plan {

/// Bytes per second that cross from the memory of node `from` to that of node `to`: the most that CPUs of either
/// were measured to carry that way, reading there or writing here. 0 = not measured.
[[nodiscard]] double crossing(const machine::Profile& profile, unsigned from, unsigned to);

/// `rates` of paths as they are by node `near`: those of one remote node share what crosses from it and to it.
/// `drives`: by path, the node of a remote drive; none: it is near, or nobody knows; fewer: the rest are near.
[[nodiscard]] std::vector<PathRates> over_the_link(std::vector<PathRates> rates,
                                                   const std::vector<std::optional<unsigned>>& drives, unsigned near,
                                                   const machine::Profile& profile);

/// Which of the paths are remote and what that costs, for people; empty: none is. `seconds`: what a step takes longer
/// than with near drives; none: it is not known.
[[nodiscard]] std::string remote_words(const std::vector<PathBudget>& paths, std::optional<double> seconds);

}  // namespace spillway::plan
