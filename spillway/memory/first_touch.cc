#include "spillway/memory/first_touch.h"

#include <algorithm>
#include <thread>

#include "spillway/base/thread.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/numa.h"
#include "spillway/sys/thread.h"

namespace spillway::memory {
namespace {

constexpr Bytes kWorthAThread = 16 * MiB;
constexpr std::size_t kPagesOfHuge = sys::kHugePage / sys::kPage;

struct Slice {
  std::size_t begin, end;  ///< pages
};

void touch_slice(std::span<std::byte> range, const Striping& striping, int node, Slice slice) {
  for (std::size_t page = slice.begin; page < slice.end;) {
    std::size_t end = page + 1;
    while (end < slice.end && (striping.node_of(end) == node) == (striping.node_of(page) == node)) ++end;
    // Where memory is short this fails without a word, and the pages are found missing.
    if (striping.node_of(page) == node)
      (void)sys::populate(range.subspan(page * sys::kPage, (end - page) * sys::kPage));
    page = end;
  }
}

/// Part `index` of `count`, cut where huge pages are.
Slice slice_of(std::size_t pages, std::size_t index, std::size_t count) {
  const std::size_t each = round_up(ceil_div(pages, count), kPagesOfHuge);
  return {std::min(pages, index * each), std::min(pages, (index + 1) * each)};
}

unsigned threads_for(const std::vector<sys::Node>& machine, int node, Bytes bytes, unsigned most) {
  const auto mine = sys::thread_affinity();
  const auto near = sys::nearest_cpus(machine, node);
  const auto usable = static_cast<unsigned>(
      std::ranges::count_if(near, [&](unsigned cpu) { return std::ranges::binary_search(mine, cpu); }));
  const auto worth = static_cast<unsigned>(std::min<Bytes>(1024, ceil_div(bytes, kWorthAThread)));
  return std::clamp(std::min(worth, most == 0 ? usable : most), 1U, 64U);
}

}  // namespace

void first_touch(std::span<std::byte> range, const Striping& striping, const std::vector<sys::Node>& machine,
                 unsigned threads) {
  const std::size_t pages = ceil_div(range.size(), sys::kPage);
  std::vector<std::jthread> workers;
  for (const NodeBytes& part : striping.shares(range.size())) {
    if (part.bytes == 0) continue;
    const auto near = sys::nearest_cpus(machine, part.node);
    const unsigned count = threads_for(machine, part.node, part.bytes, threads);
    for (unsigned i = 0; i < count; ++i) {
      workers.push_back(
          start_thread<std::jthread>([&striping, range, near, node = part.node, slice = slice_of(pages, i, count)] {
            sys::enter_service_thread("spillway-touch");
            sys::set_thread_affinity(near);
            // Refused only where there is one node, or where the caller has seen that it is permitted.
            (void)sys::set_thread_memory_policy(sys::MemoryPolicy::preferred, {&node, 1});
            touch_slice(range, striping, node, slice);
          }));
    }
  }
}

}  // namespace spillway::memory
