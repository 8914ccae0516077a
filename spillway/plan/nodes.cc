#include "spillway/plan/nodes.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace spillway::plan {
namespace {

constexpr Bytes kPage = 4096;

double rate_of(const Rates& rates, std::uint16_t node) {
  const auto& it = node < rates.nodes.size() ? rates.nodes[node] : NodeRates{};
  return it.scale_to(it.threads);
}

/// The first node, then the others, the fastest first.
std::vector<std::uint16_t> by_rate(const Rates& rates, std::size_t nodes) {
  std::vector<std::uint16_t> out(nodes);
  std::iota(out.begin(), out.end(), std::uint16_t{0});
  std::stable_sort(out.begin() + 1, out.end(), [&](auto a, auto b) { return rate_of(rates, a) > rate_of(rates, b); });
  return out;
}

class Distribution {
 public:
  Distribution(const Rates& rates, const DistributionPolicy& policy, std::vector<Bytes> room)
      : rates_(rates), policy_(policy), room_(std::move(room)), busy_(room_.size(), 0) {}

  /// The node at which the update ends first, or the first in order that has room; false: there is none.
  bool give(Bytes bytes, double elements, std::uint16_t& node) {
    double best = std::numeric_limits<double>::infinity();
    bool has_room = false;
    for (const auto candidate : policy_.nodes) {
      if (room_[candidate] < bytes) continue;
      const auto end = policy_.fill ? 0 : (busy_[candidate] + elements) / rate_of(rates_, candidate);
      if (has_room && end >= best) continue;
      best = end;
      node = candidate;
      has_room = true;
    }
    if (!has_room) return false;
    room_[node] -= bytes;
    busy_[node] += elements;
    return true;
  }

  /// The fastest node that has room. These updates follow one another, whatever node they are on.
  bool give_in_turn(Bytes bytes, double elements, std::uint16_t& node) {
    const auto fits = [&](auto candidate) { return room_[candidate] >= bytes; };
    auto nodes = policy_.nodes;
    std::ranges::stable_sort(nodes, std::ranges::greater{}, [&](auto it) { return rate_of(rates_, it); });
    const auto at = std::ranges::find_if(nodes, fits);
    if (at == nodes.end()) return false;
    node = *at;
    room_[node] -= bytes;
    busy_[node] += elements;
    return true;
  }

  /// The first node's lane updates this, too.
  void charge(double elements) { busy_[0] += elements; }

  /// The first node, or the last, that has room.
  bool put(Bytes bytes, bool last, std::uint16_t& node) {
    auto nodes = policy_.nodes;
    if (last) std::ranges::reverse(nodes);
    const auto at = std::ranges::find_if(nodes, [&](auto candidate) { return room_[candidate] >= bytes; });
    if (at == nodes.end()) return false;
    node = *at;
    room_[node] -= bytes;
    return true;
  }

 private:
  const Rates& rates_;
  const DistributionPolicy& policy_;
  std::vector<Bytes> room_;
  std::vector<double> busy_;  ///< elements given
};

}  // namespace

std::vector<DistributionPolicy> distribution_policies(const Rates& rates, std::size_t nodes, bool spill) {
  std::vector<DistributionPolicy> out;
  if (nodes == 0) return out;
  const auto order = by_rate(rates, nodes);
  for (auto count = nodes; count > 1; --count) {
    out.push_back({{order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count)}, false});
  }
  out.push_back({order, true});
  if (nodes == 1) return out;
  if (spill) out.push_back({{0}, true});
  return out;
}

Bytes count_resident_bytes(const Description& description, const state::Layout& layout, const Placement& placement,
                           Index chunk) {
  const auto& it = layout.chunks()[chunk];
  const auto rule = description.rule();
  const auto kept = [](const TierId& home, Bytes bytes) { return home.on_host() ? round_up(bytes, kPage) : 0; };
  const bool mine = description.has(layout, it);
  const auto weight = mine || !placement[chunk].weight.keeps_own() ? weight_bytes(rule, it) : 0;
  return kept(placement[chunk].weight, weight) + kept(placement[chunk].state, mine ? state_bytes(rule, it) : 0);
}

std::optional<std::vector<std::uint16_t>> distribute(const Description& description, const state::Layout& layout,
                                                     const Placement& placement, const Rates& rates,
                                                     const DistributionPolicy& policy, std::vector<Bytes> room,
                                                     bool streams_weights) {
  const auto chunks = static_cast<Index>(layout.chunks().size());
  std::vector<std::uint16_t> out(chunks, 0);
  Distribution distribution(rates, policy, std::move(room));
  const auto bytes = [&](Index c) { return count_resident_bytes(description, layout, placement, c); };
  const auto is_trainable = [&](Index c) {
    return state::is_trainable(layout.chunks()[c].training) && description.has(layout, layout.chunks()[c]);
  };
  const auto weights_alone = [&] {
    for (Index c = 0; c < chunks; ++c) {
      const bool alone = placement[c].weight.on_host() && !(placement[c].state.in_memory() && is_trainable(c));
      if (alone && bytes(c) > 0 && !distribution.put(bytes(c), streams_weights, out[c])) return false;
    }
    return true;
  };
  if (!streams_weights && !weights_alone()) return std::nullopt;
  for (Index c = 0; c < chunks; ++c) {
    if (placement[c].device_resident() || !is_trainable(c)) continue;
    const auto all = static_cast<double>(update_elements(description.rule(), layout.chunks()[c]));
    const auto elements = placement[c].updated_there() ? 0 : all;
    // Slices of a table that tokens look up share the room for their rows, so that only one is updated at a time.
    const bool in_turn = !has_dense_grad(description, layout, c);
    if (!placement[c].state.in_memory()) {
      distribution.charge(elements);
    } else if (in_turn ? !distribution.give_in_turn(bytes(c), elements, out[c])
                       : !distribution.give(bytes(c), elements, out[c])) {
      return std::nullopt;
    }
  }
  if (streams_weights && !weights_alone()) return std::nullopt;
  return out;
}

}  // namespace spillway::plan
