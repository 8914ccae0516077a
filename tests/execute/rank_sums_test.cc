// Sums of virtual ranks against recursion in plain code, bit by bit.
#include "spillway/execute/rank_sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <optional>
#include <random>
#include <vector>

namespace spillway::execute {
namespace {

using Floats = std::vector<float>;

constexpr std::size_t kOfEach = 37;

Floats added(Floats a, const Floats& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

Floats tree_of_ranks(const std::vector<Floats>& ranks, std::size_t first, std::size_t count) {
  if (count == 1) return ranks[first];
  const auto half = std::bit_ceil(count) / 2;
  return added(tree_of_ranks(ranks, first, half), tree_of_ranks(ranks, first + half, count - half));
}

/// By micro-batch in the step's order; nothing: it has no gradient.
std::vector<std::optional<Floats>> drawn_gradients(std::mt19937& random, std::size_t micro_batches, bool some_missing) {
  std::vector<std::optional<Floats>> out(micro_batches);
  std::normal_distribution<float> normal;
  for (auto& each : out) {
    if (some_missing && random() % 3 == 0) continue;
    each.emplace(kOfEach);
    for (auto& value : *each) value = normal(random) * std::exp2(static_cast<float>(random() % 24));
  }
  if (!out.back()) out.back() = Floats(kOfEach, 1.0F);
  return out;
}

Floats expected_sums(const plan::VirtualRanks& ranks, const std::vector<std::optional<Floats>>& given) {
  std::vector<Floats> sums(ranks.count(), Floats(kOfEach, 0.0F));
  std::vector<bool> begun(ranks.count(), false);
  for (std::size_t m = 0; m < given.size(); ++m) {
    if (!given[m]) continue;
    const auto rank = ranks.rank_of(m);
    sums[rank] = begun[rank] ? added(sums[rank], *given[m]) : *given[m];
    begun[rank] = true;
  }
  return tree_of_ranks(sums, 0, sums.size());
}

/// Adds a micro-batch's gradient, by the device or as the caller's product does.
void add_gradient(RankSums& sums, const RankSums::Place& place, RankSums::Progress& progress, const Floats& given,
                  std::size_t position, bool by_caller) {
  if (!by_caller) {
    return sums.add(place, progress, device::Element::fp32, reinterpret_cast<const std::byte*>(given.data()), position);
  }
  const auto loan = sums.lend_sum(place, progress, position);
  ASSERT_EQ(loan.sum.size(), given.size());
  for (std::size_t i = 0; i < given.size(); ++i) loan.sum[i] = loan.first ? given[i] : loan.sum[i] + given[i];
}

TEST(RankSums, AreThoseOfATree) {
  std::mt19937 random(3);
  const auto device = device::make_cpu();
  RankSums sums(*device, 0);
  for (int round = 0; round < 300; ++round) {
    const auto count = 1 + random() % 9, micro_batches = 1 + random() % 20;
    const plan::VirtualRanks ranks(count, micro_batches);
    const auto given = drawn_gradients(random, micro_batches, round % 2 == 1);
    Floats lowest(kOfEach, 7.0F), others(ranks.sums() * kOfEach, 7.0F);
    const RankSums::Place place{
        .lowest = lowest.data(), .others = others.data(), .stride = kOfEach, .elements = kOfEach};
    RankSums::Progress progress;
    sums.begin(ranks);
    for (std::size_t m = 0; m < given.size(); ++m) {
      if (!given[m]) continue;
      add_gradient(sums, place, progress, *given[m], m, random() % 2 == 0);
    }
    sums.finish(place, progress);
    ASSERT_EQ(lowest, expected_sums(ranks, given)) << count << " ranks, " << micro_batches << " micro-batches";
  }
}

/// Each process sums its own ranks; who owns the gradient adds what they have.
TEST(RankSums, AreThoseOfATreeWhicheverProcessesMadeThem) {
  std::mt19937 random(9);
  const auto device = device::make_cpu();
  for (int round = 0; round < 300; ++round) {
    const auto count = 1 + random() % 9, micro_batches = 1 + random() % 20;
    const plan::VirtualRanks ranks(count, micro_batches);
    const auto given = drawn_gradients(random, micro_batches, round % 2 == 1);
    const auto wanted = expected_sums(ranks, given);
    for (std::size_t size = 2; size <= ranks.count(); ++size) {
      std::vector<Floats> made_by(size);
      std::vector<Partial> parts;
      for (std::size_t rank = 0; rank < size; ++rank) {
        const auto mine = ranks.restrict_to(rank, size);
        ASSERT_LE(mine.sums(), plan::most_sums(count, 20, size));
        RankSums sums(*device, 0);
        sums.begin(mine);
        auto& own = made_by[rank];
        own.assign(mine.sums() * kOfEach, 7.0F);
        const RankSums::Place place{own.data(), own.data() + kOfEach, kOfEach, kOfEach};
        RankSums::Progress made;
        for (auto m = mine.position_of(mine.first()); m < mine.position_of(mine.end()); ++m) {
          if (!given[m]) continue;
          add_gradient(sums, place, made, *given[m], m, random() % 2 == 0);
        }
        sums.finish(place, made);
        unsigned number = 0;
        for (auto first = mine.first(); first < mine.end(); first += parts.back().of.size) {
          parts.push_back({plan::subtree_from(first, mine.end()), place.sum(number++)});
        }
        ASSERT_EQ(number, mine.partials());
      }
      ASSERT_LE(parts.size(), plan::most_received(count, 20, size, size) + ranks.sums());
      const auto* whole = add_partials(parts, kOfEach);
      const Floats lowest(whole, whole + kOfEach);
      ASSERT_EQ(lowest, wanted) << count << " ranks, " << micro_batches << " micro-batches, " << size << " processes";
    }
  }
}

TEST(RankSums, OfOneRankAreInOrderAndNeedNoOtherSum) {
  const auto device = device::make_cpu();
  RankSums sums(*device, 0);
  sums.begin({1, 3});
  Floats lowest(2, 7.0F);
  RankSums::Progress progress;
  const RankSums::Place place{.lowest = lowest.data(), .elements = 2};
  const std::vector<Floats> given{{1e8F, 1.0F}, {1.0F, 2.0F}, {-1e8F, 3.0F}};
  for (std::size_t m = 0; m < given.size(); ++m) {
    sums.add(place, progress, device::Element::fp32, reinterpret_cast<const std::byte*>(given[m].data()), m);
  }
  sums.finish(place, progress);
  EXPECT_EQ(lowest, (Floats{0.0F, 6.0F}));
}

TEST(RankSums, AddRanksAndNotMicroBatchesInOrder) {
  const auto device = device::make_cpu();
  RankSums sums(*device, 0);
  sums.begin({2, 4});
  Floats lowest(1), others(1);
  RankSums::Progress progress;
  const RankSums::Place place{.lowest = lowest.data(), .others = others.data(), .stride = 1, .elements = 1};
  const Floats given{1e8F, -1e8F, 1.0F, 1.0F};  // of one rank ((1e8 - 1e8) + 1) + 1, and of two the same
  for (std::size_t m = 0; m < given.size(); ++m) {
    sums.add(place, progress, device::Element::fp32, reinterpret_cast<const std::byte*>(&given[m]), m);
  }
  sums.finish(place, progress);
  EXPECT_EQ(lowest.front(), 2.0F);
  progress = {};
  const Floats turned{1e8F, 1.0F, -1e8F, 1.0F};  // (1e8 + 1) + (-1e8 + 1): both ones are lost
  for (std::size_t m = 0; m < turned.size(); ++m) {
    sums.add(place, progress, device::Element::fp32, reinterpret_cast<const std::byte*>(&turned[m]), m);
  }
  sums.finish(place, progress);
  EXPECT_EQ(lowest.front(), 0.0F);
}

}  // namespace
}  // namespace spillway::execute
