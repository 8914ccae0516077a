#include "spillway/plan/remote_drives.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace spillway::plan {
namespace {

/// The part that a link carries of what is asked of it; 0 = unknown.
double part_carried(double carried, double asked) {
  return carried > 0 && asked > carried ? carried / asked : 1;
}

}  // namespace

double crossing(const machine::Profile& profile, unsigned from, unsigned to) {
  double most = 0;
  for (const auto& it : profile.access) {
    if (it.cpus == to && it.memory == from) most = std::max(most, it.read.most);
    if (it.cpus == from && it.memory == to) most = std::max(most, it.write.most);
  }
  return most;
}

std::vector<PathRates> over_the_link(std::vector<PathRates> rates, const std::vector<std::optional<unsigned>>& drives,
                                     unsigned near, const machine::Profile& profile) {
  std::set<unsigned> nodes;
  const auto count = std::min(rates.size(), drives.size());
  for (std::size_t p = 0; p < count; ++p) {
    if (drives[p] && *drives[p] != near) nodes.insert(*drives[p]);
  }
  for (const auto node : nodes) {
    PathRates all;
    const auto each = [&](const auto& see) {
      for (std::size_t p = 0; p < count; ++p) {
        if (drives[p] == node) see(rates[p]);
      }
    };
    each([&](const PathRates& it) {
      all.read += it.read;
      all.write += it.write;
      all.mixed += it.mixed;
    });
    const auto here = crossing(profile, node, near), there = crossing(profile, near, node);
    const auto reads = part_carried(here, all.read), writes = part_carried(there, all.write);
    // Half of it goes each way; the directions do not slow each other down.
    const auto both = std::min(part_carried(here, all.mixed / 2), part_carried(there, all.mixed / 2));
    each([&](PathRates& it) { it = {it.read * reads, it.write * writes, it.mixed * both}; });
  }
  return rates;
}

std::string remote_words(const std::vector<PathBudget>& paths, std::optional<double> seconds) {
  std::string names;
  for (const auto& path : paths) {
    if (!path.remote) continue;
    names += text(names.empty() ? "" : ", ", path.name);
    if (path.node) names += text(" (by NUMA node ", *path.node, ")");
  }
  if (names.empty()) return {};
  names += ": the way to the device is over the link between the CPUs";
  if (!seconds) return names + "; what that costs is not known, the profile has no rates between these NUMA nodes";
  if (*seconds < 5e-4) return names + "; as measured, it holds up no step";
  return names + text("; a step takes ", std::round(*seconds * 1e3) / 1e3, " s longer than with near drives");
}

}  // namespace spillway::plan
