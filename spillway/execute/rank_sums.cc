#include "spillway/execute/rank_sums.h"

#include <algorithm>
#include <vector>

#include "spillway/device/typed.h"

namespace spillway::execute {

void RankSums::add(const Place& place, Progress& progress, device::Element type, const std::byte* values,
                   std::uint64_t position) {
  const auto rank = ranks_.rank_of(position);
  advance(place, progress, rank);
  device_.run(stream_, device::Sum{.type = type,
                                   .values = values,
                                   .sum = place.sum(ranks_.sum_of(rank)),
                                   .n = place.elements,
                                   .first = !progress.begun || ranks_.begins(position)});
  progress.begun = true;
}

/// Ends the ranks before `rank`.
void RankSums::advance(const Place& place, Progress& progress, std::uint64_t rank) {
  progress.rank = std::max(progress.rank, ranks_.first());
  for (; progress.rank < rank; ++progress.rank) {
    auto top = ranks_.sum_of(progress.rank);
    if (!progress.begun) {
      auto* const to = reinterpret_cast<std::byte*>(place.sum(top));
      device_.fill(stream_, to, 0, place.elements * sizeof(float));
    }
    for (auto merges = ranks_.merges({progress.rank, 1}); merges > 0; --merges) merge(place, top--);
    progress.begun = false;
  }
}

/// Adds a sum to the one below it.
void RankSums::merge(const Place& place, unsigned number) {
  device_.run(stream_, device::Sum{.type = device::Element::fp32,
                                   .values = reinterpret_cast<const std::byte*>(place.sum(number)),
                                   .sum = place.sum(number - 1),
                                   .n = place.elements,
                                   .first = false});
}

void RankSums::finish(const Place& place, Progress& progress) {
  advance(place, progress, ranks_.end());
  if (ranks_.end() - ranks_.first() < ranks_.count()) return;
  for (auto top = ranks_.sum_of(ranks_.count()) - 1; top > 0; --top) merge(place, top);
}

float* add_partials(std::span<const Partial> parts, std::uint64_t elements) {
  std::vector<Partial> stack;
  const auto merge = [&] {
    const auto top = stack.back();
    stack.pop_back();
    device::add(device::Element::fp32, reinterpret_cast<const std::byte*>(top.sum), stack.back().sum, elements);
    stack.back().of.size += top.of.size;
  };
  for (const auto& part : parts) {
    stack.push_back(part);
    while (stack.size() > 1) {
      const auto& left = stack.end()[-2].of;
      const auto& right = stack.back().of;
      if (left.size != right.size || left.first % (2 * left.size) != 0) break;
      merge();
    }
  }
  while (stack.size() > 1) merge();
  return stack.empty() ? nullptr : stack.front().sum;
}

}  // namespace spillway::execute
