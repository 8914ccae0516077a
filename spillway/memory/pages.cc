#include "spillway/memory/pages.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "spillway/base/error.h"
#include "spillway/memory/first_touch.h"
#include "spillway/memory/room.h"
#include "spillway/sys/errno.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/numa.h"

namespace spillway::memory {
namespace {

using Pages = std::vector<int>;  ///< the node of each page

bool has_one_node(const std::vector<sys::Node>& machine) {
  return std::ranges::count_if(machine, &sys::Node::has_memory) == 1;
}

int only_node(const std::vector<sys::Node>& machine) {
  return std::ranges::find_if(machine, &sys::Node::has_memory)->id;
}

[[noreturn]] void refuse_calls() {
  throw Error(ErrorCode::unsupported, sys::numa_refusal());
}

/// Without the kernel's word, where the answer can only be one.
Pages pages_of_only_node(std::span<const std::byte> range, int node) {
  Pages out(sys::page_count(range), sys::kAbsent);
  const auto present = sys::resident_pages(range);
  for (std::size_t page = 0; page < out.size(); ++page) {
    if (present[page]) out[page] = node;
  }
  return out;
}

Pages pages_of(std::span<const std::byte> range) {
  if (!sys::numa_refusal().empty()) {
    const auto machine = sys::nodes();
    if (!has_one_node(machine)) refuse_calls();
    return pages_of_only_node(range, only_node(machine));
  }
  Pages out(sys::page_count(range));
  if (const int failure = sys::page_nodes(range, out); failure != 0) {
    throw Error(ErrorCode::io, text("cannot ask the kernel where memory lies: ", sys::describe_errno(failure)),
                failure);
  }
  return out;
}

/// What `striping` wants of pages that are there.
Pages wanted(const Pages& pages, const Striping& striping) {
  Pages out(pages.size(), sys::kAbsent);
  for (std::size_t page = 0; page < out.size(); ++page) {
    if (pages[page] != sys::kAbsent && pages[page] != striping.node_of(page)) out[page] = striping.node_of(page);
  }
  return out;
}

/// Bytes that are to come to each node.
std::vector<NodeBytes> arriving(const Pages& to) {
  std::map<int, Bytes> by_node;
  for (const int node : to) {
    if (node != sys::kAbsent) by_node[node] += sys::kPage;
  }
  std::vector<NodeBytes> out;
  out.reserve(by_node.size());
  for (const auto& [node, bytes] : by_node) out.push_back({node, bytes});
  return out;
}

/// Pages that come again (from swap) shall do so where they were, and the kernel's own balancing leaves memory with a
/// policy alone. One policy for the range: a policy for each piece would be a mapping for each. Advice only.
void settle_policy(std::span<std::byte> range, const Striping& striping) {
  using sys::MemoryPolicy;
  const auto set = [&](MemoryPolicy policy) { return sys::set_memory_policy(range, policy, striping.nodes()) == 0; };
  if (striping.nodes().size() == 1) return void(set(MemoryPolicy::preferred));
  const auto kernel = sys::weighted_interleave();
  const auto& weights = striping.weights();
  bool same = true;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto node = static_cast<std::size_t>(striping.nodes()[i]);
    same = same && node < kernel.size() && kernel[node] == weights[i];
  }
  if (same && set(MemoryPolicy::weighted)) return;
  if (std::ranges::all_of(weights, [](unsigned weight) { return weight == 1; }))
    return void(set(MemoryPolicy::interleave));
  if (!set(MemoryPolicy::any_of)) set(MemoryPolicy::interleave);
}

/// Moves what lies elsewhere; what could not be moved.
Pages mend(std::span<std::byte> range, const Striping& striping) {
  Pages stray = wanted(pages_of(range), striping);
  if (arriving(stray).empty()) return {};
  (void)sys::move_pages(range, stray);
  stray = wanted(pages_of(range), striping);
  return arriving(stray).empty() ? Pages{} : stray;
}

void refuse_stray(const Pages& stray, const std::string& what) {
  for (const NodeBytes& part : arriving(stray)) {
    throw Error(ErrorCode::does_not_fit, text(human(part.bytes), " of ", what, " for node ", part.node,
                                              " ended elsewhere: others have taken its free memory meanwhile"));
  }
}

/// Whether no huge page is to lie on two nodes.
bool keeps_huge_pages(std::span<const std::byte> range, const Striping& striping) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(range.data()) % sys::kHugePage == 0;
  return striping.nodes().size() == 1 || (aligned && striping.takes_huge_pages());
}

/// Without pages that others have a part of.
std::span<std::byte> whole_pages(std::span<std::byte> range) {
  const auto address = reinterpret_cast<std::uintptr_t>(range.data());
  const auto first = round_up(address, sys::kPage) - address;
  const auto end = round_down(address + range.size(), sys::kPage);
  return end <= address + first ? std::span<std::byte>{} : range.subspan(first, end - address - first);
}

/// One at a time in a process, so that two do not count on the same free memory.
std::mutex& placing() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

std::vector<NodeBytes> where(std::span<const std::byte> range) {
  std::map<int, Bytes> by_node;
  const auto pages = pages_of(range);
  const auto* end = range.data() + range.size();
  const auto* at = range.data();
  for (const int node : pages) {
    const auto into = reinterpret_cast<std::uintptr_t>(at) % sys::kPage;
    const auto bytes = std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(sys::kPage - into), end - at);
    by_node[node] += static_cast<Bytes>(bytes);
    at += bytes;
  }
  std::vector<NodeBytes> out;
  out.reserve(by_node.size());
  for (const auto& [node, bytes] : by_node) out.push_back({node, bytes});
  return out;
}

void place(std::span<std::byte> range, const Placement& placement, bool huge_pages, const std::string& what) {
  const std::lock_guard lock(placing());
  const auto machine = sys::nodes();
  const Striping striping(placement, machine);
  const bool may = sys::numa_refusal().empty();
  if (!may && !has_one_node(machine)) refuse_calls();
  const auto parts = striping.shares(range.size());
  placement.strict ? require_room(parts, machine, what) : require_room(range.size(), what);
  huge_pages&& striping.takes_huge_pages() ? sys::advise_huge_pages(range) : sys::advise_small_pages(range);
  first_touch(range, striping, machine);
  if (!may) return;
  const Pages stray = placement.strict ? mend(range, striping) : Pages{};
  settle_policy(range, striping);
  refuse_stray(stray, what);
}

void move(std::span<std::byte> range, const Placement& placement) {
  const std::lock_guard lock(placing());
  const auto machine = sys::nodes();
  const Striping striping(placement, machine);
  if (!sys::numa_refusal().empty()) {
    if (!has_one_node(machine)) refuse_calls();
    return;
  }
  const Pages before = pages_of(range);
  const Pages to = wanted(before, striping);
  if (placement.strict) require_room(arriving(to), machine, "memory to move");
  if (!keeps_huge_pages(range, striping)) sys::split_huge_pages(range);
  (void)sys::move_pages(range, to);
  const Pages stray = placement.strict ? mend(range, striping) : Pages{};
  if (stray.empty()) return settle_policy(whole_pages(range), striping);
  (void)sys::move_pages(range, before);
  refuse_stray(stray, "memory to move");
}

}  // namespace spillway::memory
