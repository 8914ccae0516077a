#include "spillway/execute/rank_sums.h"

namespace spillway::execute {

using plan::VirtualRanks;

void RankSums::add(const Place& place, Progress& progress, device::Element type, const std::byte* values,
                   std::uint64_t position) {
  const auto rank = ranks_.rank_of(position);
  advance(place, progress, rank);
  device_.run(stream_, device::Sum{.type = type,
                                   .values = values,
                                   .sum = place.sum(VirtualRanks::sum_of(rank)),
                                   .n = place.elements,
                                   .first = !progress.begun || ranks_.begins(position)});
  progress.begun = true;
}

/// Ends the ranks before `rank`.
void RankSums::advance(const Place& place, Progress& progress, std::uint64_t rank) {
  for (; progress.rank < rank; ++progress.rank) {
    auto top = VirtualRanks::sum_of(progress.rank);
    if (!progress.begun) {
      auto* const to = reinterpret_cast<std::byte*>(place.sum(top));
      device_.fill(stream_, to, 0, place.elements * sizeof(float));
    }
    for (auto merges = VirtualRanks::merges(progress.rank); merges > 0; --merges) merge(place, top--);
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
  if (ranks_.count() == 1) return;
  advance(place, progress, ranks_.count());
  for (auto top = VirtualRanks::sum_of(ranks_.count()) - 1; top > 0; --top) merge(place, top);
}

}  // namespace spillway::execute
