#include "spillway/execute/rank_sums.h"

#include <algorithm>

#include "spillway/device/typed.h"

namespace spillway::execute {

void RankSums::add(const Place& place, Progress& progress, device::Element type, const std::byte* values,
                   std::uint64_t position) {
  const auto loan = lend_sum(place, progress, position);
  device_.run(
      stream_,
      device::Sum{.type = type, .values = values, .sum = loan.sum.data(), .n = place.elements, .first = loan.first});
}

SumLoan RankSums::lend_sum(const Place& place, Progress& progress, std::uint64_t position) {
  const auto rank = ranks_.rank_of(position);
  advance(place, progress, rank);
  const bool first = !progress.begun || ranks_.begins(position);
  progress.begun = true;
  return {{place.sum(ranks_.sum_of(rank)), place.elements}, first};
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

namespace {

/// Joins the topmost subtree with the one below it, and adds so many elements of their sums.
void join_top(std::vector<Partial>& stack, std::uint64_t elements) {
  const auto top = stack.back();
  stack.pop_back();
  auto& below = stack.back();
  below.of.size += top.of.size;
  if (below.sum == nullptr) {
    below.sum = top.sum;
  } else if (top.sum != nullptr && elements > 0) {
    device::add(device::Element::fp32, reinterpret_cast<const std::byte*>(top.sum), below.sum, elements);
  }
}

}  // namespace

std::vector<Partial> join_partials(std::span<const Partial> parts, std::uint64_t elements) {
  std::vector<Partial> stack;
  for (const auto& part : parts) {
    stack.push_back(part);
    while (stack.size() > 1) {
      const auto& left = stack.end()[-2].of;
      const auto& right = stack.back().of;
      if (left.size != right.size || left.first % (2 * left.size) != 0) break;
      join_top(stack, elements);
    }
  }
  return stack;
}

float* add_partials(std::span<const Partial> parts, std::uint64_t elements) {
  auto stack = join_partials(parts, elements);
  while (stack.size() > 1) join_top(stack, elements);
  return stack.empty() ? nullptr : stack.front().sum;
}

}  // namespace spillway::execute
