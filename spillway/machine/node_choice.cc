#include "spillway/machine/node_choice.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/sys/nodes.h"
#include "spillway/sys/numa.h"

namespace spillway::machine {
namespace {

/// A node with less than this to take is not worth a tier.
constexpr Bytes kLeastTakeable = 64 * MiB;

std::size_t cpus_of(const sys::Node& node, const std::vector<unsigned>& mine) {
  return static_cast<std::size_t>(
      std::ranges::count_if(node.cpus, [&](unsigned cpu) { return std::ranges::find(mine, cpu) != mine.end(); }));
}

const sys::Node& node_of(const std::vector<sys::Node>& machine, int id) {
  return *std::ranges::find(machine, id, &sys::Node::id);
}

/// The nearest to what computes comes first.
void put_first(std::vector<NodeShare>& nodes, const std::vector<sys::Node>& machine, std::optional<int> near) {
  const auto mine = sys::thread_affinity();
  const auto cpus_beside = [&](const NodeShare& share) { return cpus_of(node_of(machine, share.id), mine); };
  auto first = near ? std::ranges::find(nodes, *near, &NodeShare::id) : nodes.end();
  if (first == nodes.end()) first = std::ranges::max_element(nodes, {}, cpus_beside);
  if (first != nodes.end()) std::rotate(nodes.begin(), first, first + 1);
}

void check(const std::vector<NodeShare>& asked, const std::vector<sys::Node>& machine) {
  for (std::size_t i = 0; i < asked.size(); ++i) {
    static_cast<void>(sys::find_node(machine, asked[i].id));
    const auto same = [&](const NodeShare& other) { return other.id == asked[i].id; };
    if (std::any_of(asked.begin(), asked.begin() + static_cast<std::ptrdiff_t>(i), same)) {
      throw Error(ErrorCode::bad_input, text("node: ", asked[i].id, " is named twice"));
    }
  }
}

void require(const std::vector<NodeShare>& nodes, const std::vector<sys::Node>& machine, Bytes held) {
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const auto there = sys::takeable(node_of(machine, nodes[n].id)) + (n == 0 ? held : 0);
    if (nodes[n].capacity <= there) continue;
    throw Error(ErrorCode::does_not_fit,
                text("node: ", human(nodes[n].capacity), " of node ", nodes[n].id, " are asked for, and ", human(there),
                     " can be taken there. It would fit with --node ", nodes[n].id, "=", there / MiB, "MiB"));
  }
}

std::vector<NodeShare> all(const std::vector<sys::Node>& machine) {
  std::vector<NodeShare> out;
  for (const auto& node : machine) {
    if (node.has_memory() && node.allowed && sys::takeable(node) >= kLeastTakeable) {
      out.push_back({node.id, sys::takeable(node)});
    }
  }
  return out;
}

}  // namespace

NodeChoice choose_nodes(const std::vector<NodeShare>& asked, Bytes held, const std::string& root,
                        std::optional<int> near) {
  const auto machine = sys::nodes(root);
  check(asked, machine);
  NodeChoice out{.nodes = asked.empty() ? all(machine) : asked};
  put_first(out.nodes, machine, near);
  const auto with_memory = std::ranges::count_if(machine, &sys::Node::has_memory);
  if (!asked.empty() && with_memory > 1) require(out.nodes, machine, held);
  if (with_memory > 1 && root.empty() && !sys::numa_refusal().empty()) {
    if (!asked.empty()) throw Error(ErrorCode::unsupported, text("node: ", sys::numa_refusal()));
    return {.nodes = {}, .dram = {}, .notice = sys::numa_refusal()};
  }
  if (with_memory > 1) {
    if (asked.empty() && !out.nodes.empty()) out.nodes.front().capacity += held;
    return out;
  }
  if (!asked.empty()) out.dram = asked.front().capacity;
  out.nodes.clear();
  return out;
}

}  // namespace spillway::machine
