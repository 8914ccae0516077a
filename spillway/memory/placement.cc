#include "spillway/memory/placement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "spillway/base/error.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/numa.h"

namespace spillway::memory {
namespace {

constexpr double kMostInRound = 1024;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::bad_input, why);
}

std::vector<unsigned> checked_weights(const Placement& placement) {
  const auto& weights = placement.weights;
  if (weights.empty()) return std::vector<unsigned>(placement.nodes.size(), 1);
  if (weights.size() != placement.nodes.size()) {
    refuse(text("weights: ", weights.size(), " for ", placement.nodes.size(), " nodes; each node has one"));
  }
  for (const double weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight)) refuse(text("weights: ", weight, " is no positive number"));
  }
  return whole_weights(weights);
}

std::size_t checked_piece(const Placement& placement) {
  if (placement.granularity % sys::kPage != 0) {
    refuse(text("granularity: ", placement.granularity, " bytes; it must be a multiple of ", sys::kPage));
  }
  return placement.granularity == 0 ? 1 : placement.granularity / sys::kPage;
}

/// Each piece goes to the node that is furthest behind its share.
std::vector<int> round_of(const std::vector<int>& nodes, const std::vector<unsigned>& weights) {
  const auto length = std::accumulate(weights.begin(), weights.end(), 0U);
  std::vector<long> owed(nodes.size(), 0);
  std::vector<int> out;
  while (out.size() < length) {
    for (std::size_t i = 0; i < owed.size(); ++i) owed[i] += weights[i];
    const auto most = static_cast<std::size_t>(std::ranges::max_element(owed) - owed.begin());
    owed[most] -= length;
    out.push_back(nodes[most]);
  }
  return out;
}

}  // namespace

std::vector<unsigned> whole_weights(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const bool whole = std::ranges::all_of(weights, [](double w) { return w == std::floor(w) && w < 1e9; });
  std::vector<unsigned> out;
  if (whole) {
    unsigned divisor = 0;
    for (const double weight : weights) divisor = std::gcd(divisor, static_cast<unsigned>(weight));
    if (sum / divisor <= kMostInRound) {
      for (const double weight : weights) out.push_back(static_cast<unsigned>(weight) / divisor);
      return out;
    }
  }
  for (const double weight : weights) {
    out.push_back(std::max(1U, static_cast<unsigned>(std::lround(weight / sum * kMostInRound))));
  }
  return out;
}

Striping::Striping(const Placement& placement, const std::vector<sys::Node>& machine)
    : nodes_(placement.nodes), pages_per_piece_(checked_piece(placement)) {
  std::set<int> seen;
  for (const int id : nodes_) {
    (void)sys::find_node(machine, id);
    if (!seen.insert(id).second) refuse(text("nodes: ", id, " is named twice; weights give a node more"));
  }
  weights_ = checked_weights(placement);
  round_ = round_of(nodes_, weights_);
}

std::vector<NodeBytes> Striping::shares(Bytes bytes) const {
  const std::size_t pages = ceil_div(bytes, sys::kPage);
  const std::size_t length = round_.size() * pages_per_piece_;  // pages of a round
  std::vector<NodeBytes> out;
  out.reserve(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    out.push_back({nodes_[i], pages / length * weights_[i] * pages_per_piece_ * sys::kPage});
  }
  const auto add = [&](int node, std::size_t count) {
    std::ranges::find(out, node, &NodeBytes::node)->bytes += count * sys::kPage;
  };
  for (std::size_t page = pages / length * length; page < pages;) {
    const std::size_t count = std::min(pages_per_piece_ - page % pages_per_piece_, pages - page);
    add(node_of(page), count);
    page += count;
  }
  return out;
}

bool Striping::takes_huge_pages() const noexcept {
  return nodes_.size() == 1 || pages_per_piece_ * sys::kPage % sys::kHugePage == 0;
}

}  // namespace spillway::memory
