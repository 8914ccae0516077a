#include "spillway/plan/reserve.h"

#include <algorithm>
#include <numeric>

#include "spillway/base/error.h"

namespace spillway::plan {
namespace {

/// Part of each path's capacity that is left to data.
std::vector<Bytes> data_capacities(const Budget& budget, Bytes overhead) {
  std::vector<Bytes> out;
  for (const auto& path : budget.paths) {
    const auto whole = round_down(path.capacity, 1 * MiB);
    out.push_back(whole - std::min(whole, overhead));
  }
  return out;
}

[[noreturn]] void refuse(const Budget& budget, Durability durability, Bytes overhead, const StorageNeed& need) {
  std::string there;
  for (const auto& path : budget.paths) {
    there += text(there.empty() ? "" : ", ", path.name, " with ", human(path.capacity));
  }
  auto message = text("does not fit on storage: the plan needs ", human(need.bytes() + budget.paths.size() * overhead),
                      " there, and there is ", there);
  const auto durable = need.breakdown.find("durability");
  if (durable != need.breakdown.end() && durable->second > 0) {
    message += text(". ", human(durable->second), " of it make it durable (--durability ", name_of(durability));
    if (budget.checkpoints > 0) {
      message += text("; ", budget.checkpoints, budget.checkpoints == 1 ? " checkpoint is" : " checkpoints are",
                      " kept there, fewer with --save_total_limit");
      if (!budget.saving || budget.saving->whole.empty()) message += " or none with --save_only_model";
    }
    message += ")";
  }
  message += ". It would fit with a larger capacity, with another --storage DIR, ";
  if (durability == Durability::step) message += "with --durability checkpoint, ";
  throw Error(ErrorCode::does_not_fit, message + "or with more DRAM (--dram_budget) and --placement auto");
}

/// Paths, those that are not remote first.
std::vector<std::size_t> near_first(const Budget& budget) {
  std::vector<std::size_t> out(budget.paths.size());
  std::iota(out.begin(), out.end(), std::size_t{0});
  std::ranges::stable_partition(out, [&](std::size_t p) { return !budget.paths[p].remote; });
  return out;
}

std::vector<Bytes> share_out(Bytes bytes, const std::vector<Bytes>& capacities, const Budget& budget,
                             const Rates& rates) {
  const auto n = capacities.size();
  if (n == 1) return {bytes};
  std::vector<double> weight(n, 1);
  if (rates.paths.size() >= n && std::ranges::all_of(rates.paths, [](const auto& r) { return r.mixed > 0; })) {
    for (std::size_t p = 0; p < n; ++p) weight[p] = rates.paths[p].mixed;
  }
  const auto all = std::accumulate(weight.begin(), weight.end(), 0.0);
  std::vector<Bytes> out(n);
  Bytes sum = 0;
  for (std::size_t p = 0; p < n; ++p) {
    const auto wish = round_up(static_cast<Bytes>(1.5 * static_cast<double>(bytes) * weight[p] / all), 1 * MiB);
    sum += out[p] = std::min(wish, capacities[p]);
  }
  for (const auto p : near_first(budget)) {
    const auto more = std::min(bytes - std::min(bytes, sum), capacities[p] - out[p]);
    out[p] += more;
    sum += more;
  }
  return out;
}

}  // namespace

std::vector<Bytes> reserve(const Budget& budget, const Rates& rates, Durability durability, Bytes overhead,
                           StorageNeed& need) {
  const auto capacities = data_capacities(budget, overhead);
  const auto capacity = std::accumulate(capacities.begin(), capacities.end(), Bytes{0});
  if (need.bytes() > capacity) {
    const auto less = std::min(need.bytes() - capacity, need.spare - need.least_spare);
    if (less > 0) need.breakdown["durability"] -= less;
    need.spare -= less;
  }
  if (need.bytes() > capacity) refuse(budget, durability, overhead, need);
  return share_out(need.bytes(), capacities, budget, rates);
}

}  // namespace spillway::plan
