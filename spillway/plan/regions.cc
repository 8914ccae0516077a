#include "spillway/plan/regions.h"

#include <algorithm>

#include "spillway/plan/arena_layout.h"

namespace spillway::plan {
namespace {

constexpr Bytes kRegionPage = 4096, kHugePage = 2 * MiB;
/// Weights of this size on several nodes begin at a huge page, so that their parts are made of such.
constexpr Bytes kLarge = 16 * MiB;

class RegionPlacer {
 public:
  RegionPlacer(Schedule& schedule, const state::Layout& layout)
      : schedule_(schedule), layout_(layout), node_(schedule.buffers.size(), 0) {}

  std::vector<Region> run(Bytes bytes) {
    auto floor = resident_bytes(schedule_);
    find_nodes();
    const auto nodes = std::max(*std::ranges::max_element(schedule_.node), last_node(schedule_));
    for (std::uint16_t node = 1; node <= nodes; ++node) {
      stack(node);
      floor += move(node, moving_range(schedule_, node).begin);
      if (at_ > 0) at_ = round_up(at_, kHugePage);
      add({at_, at_, node});
    }
    for (const auto& it : weights_) place_mixed(it);
    if (at_ > 0) at_ = round_up(at_, kHugePage);
    stack(0);
    const auto above = at_;
    move(0, floor);
    add({above, bytes - floor + above, 0});
    return std::move(regions_);
  }

 private:
  static constexpr std::uint16_t kMixed = 0xffff;
  /// Weights of neighbours that stay, one behind the other.
  struct Weights {
    Index buffer = kNone;
    std::vector<Index> chunks;
  };

  void find_nodes() {
    for (Index b = 0; b < node_.size(); ++b) node_[b] = schedule_.buffers[b].node;
    for (Index c = 0; c < layout_.chunks().size(); ++c) {
      if (const auto state = schedule_.resident_state[c]; state != kNone) node_[state] = schedule_.node[c];
      list_weight(c);
    }
    for (const auto& it : weights_) {
      const auto first = schedule_.node[it.chunks.front()];
      const bool one = std::ranges::all_of(it.chunks, [&](Index c) { return schedule_.node[c] == first; });
      node_[it.buffer] = one ? first : kMixed;
    }
  }

  /// All of them where passes find them so; else where a process keeps its own apart.
  void list_weight(Index c) {
    const auto all = schedule_.resident_weight[c];
    const auto buffer = all != kNone ? all : schedule_.groups[c].weight.buffer;
    if (buffer == kNone || !schedule_.buffers[buffer].whole || !schedule_.buffers[buffer].on_host()) return;
    if (weights_.empty() || weights_.back().buffer != buffer) weights_.push_back({buffer, {}});
    weights_.back().chunks.push_back(c);
  }

  /// Stacks the resident bytes that lie on this node alone.
  void stack(std::uint16_t node) {
    for (Index b = 0; b < schedule_.buffers.size(); ++b) {
      auto& buffer = schedule_.buffers[b];
      if (!buffer.whole || !buffer.on_host() || node_[b] != node) continue;
      buffer.offset = at_;
      at_ += round_up(buffer.bytes, kRegionPage);
      add({buffer.offset, at_, node});
    }
  }

  /// Moves the transient buffers on this node, which lay from `begin` on; returns their bytes.
  Bytes move(std::uint16_t node, Bytes begin) {
    const auto bytes = moving_range(schedule_, node).bytes();
    for (auto& buffer : schedule_.buffers) {
      if (buffer.whole || !buffer.on_host() || buffer.node != node) continue;
      buffer.offset = buffer.offset - begin + at_;
    }
    add({at_, at_ + bytes, node});
    at_ += bytes;
    return bytes;
  }

  /// A layer's weights, chunk by chunk.
  void place_mixed(const Weights& weights) {
    if (node_[weights.buffer] != kMixed) return;
    auto& buffer = schedule_.buffers[weights.buffer];
    if (buffer.bytes >= kLarge) at_ = round_up(at_, kHugePage);
    buffer.offset = at_;
    std::uint64_t elements = 0;
    for (const auto c : weights.chunks) elements += layout_.chunks()[c].elements;
    const auto element = buffer.bytes / elements;
    Bytes end = at_;
    for (const auto c : weights.chunks) {
      end += layout_.chunks()[c].elements * element;
      add({at_, round_up(end, kRegionPage), schedule_.node[c]});
      at_ = round_up(end, kRegionPage);
    }
  }

  /// A gap before a region belongs to the one below.
  void add(Region region) {
    if (!regions_.empty()) regions_.back().end = region.begin;
    if (region.end == region.begin) return;
    if (!regions_.empty() && regions_.back().node == region.node) {
      regions_.back().end = region.end;
    } else {
      regions_.push_back(region);
    }
  }

  Schedule& schedule_;
  const state::Layout& layout_;
  std::vector<std::uint16_t> node_;  ///< by buffer
  std::vector<Weights> weights_;
  std::vector<Region> regions_;
  Bytes at_ = 0;
};

}  // namespace

std::vector<Region> place_on_nodes(Schedule& schedule, const state::Layout& layout, Bytes bytes) {
  return RegionPlacer(schedule, layout).run(bytes);
}

Bytes node_padding(std::size_t nodes, const state::Layout& layout, Bytes weight_element) noexcept {
  if (nodes < 2) return 0;
  const auto large = std::ranges::count_if(
      layout.blocks(), [&](const state::Block& block) { return block.elements * weight_element >= kLarge; });
  return (nodes + 1 + static_cast<Bytes>(large)) * kHugePage;
}

std::vector<Bytes> bytes_by_node(const std::vector<Region>& regions, std::size_t nodes) {
  std::vector<Bytes> out(std::max<std::size_t>(1, nodes), 0);
  for (const auto& region : regions) out[region.node] += region.bytes();
  return out;
}

}  // namespace spillway::plan
