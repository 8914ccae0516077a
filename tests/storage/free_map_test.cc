#include "spillway/storage/free_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace spillway::storage {
namespace {

/// The obvious map beside the fast one.
class Reference {
 public:
  explicit Reference(std::uint32_t size) : free_(size, true) {}
  std::uint32_t take() {
    for (std::uint32_t i = 0; i < free_.size(); ++i) {
      const auto place = static_cast<std::uint32_t>((next_ + i) % free_.size());
      if (!free_[place]) continue;
      free_[place] = false;
      next_ = place + 1;
      return place;
    }
    return static_cast<std::uint32_t>(free_.size());
  }
  void put(std::uint32_t place) { free_[place] = true; }

 private:
  std::vector<bool> free_;
  std::uint32_t next_ = 0;
};

class FreeMapSizes : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(FreeMapSizes, TakesEachPlaceOnceInOrder) {
  FreeMap map(GetParam());
  EXPECT_EQ(map.free(), GetParam());
  for (std::uint32_t place = 0; place < GetParam(); ++place) {
    EXPECT_TRUE(map.is_free(place));
    EXPECT_EQ(map.take(), place);
    EXPECT_FALSE(map.is_free(place));
  }
  EXPECT_EQ(map.free(), 0U);
}

TEST_P(FreeMapSizes, FindsTheOnlyFreePlaceWhereverItIs) {
  FreeMap map(GetParam());
  while (map.free() > 0) (void)map.take();
  for (std::uint32_t place = 0; place < GetParam(); ++place) {
    const std::uint32_t mirrored = GetParam() - 1 - place;
    map.put(mirrored);
    EXPECT_EQ(map.take(), mirrored);
  }
}

TEST_P(FreeMapSizes, DoesWhatTheReferenceDoes) {
  FreeMap map(GetParam());
  Reference reference(GetParam());
  std::vector<std::uint32_t> taken;
  std::mt19937 random(GetParam());
  for (int step = 0; step < 4000; ++step) {
    const bool fuller = step / 1000 % 2 == 0;
    if (map.free() > 0 && (taken.empty() || random() % 4 < (fuller ? 3U : 1U))) {
      const std::uint32_t place = map.take();
      ASSERT_EQ(place, reference.take());
      taken.push_back(place);
    } else {
      std::swap(taken[random() % taken.size()], taken.back());
      map.put(taken.back());
      reference.put(taken.back());
      taken.pop_back();
    }
    ASSERT_EQ(map.free() + taken.size(), GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, FreeMapSizes, ::testing::Values(1, 2, 63, 64, 65, 127, 128, 4095, 4096, 4097, 10000));

TEST(FreeMap, ClaimedPlacesAreNotTaken) {
  FreeMap map(8);
  map.take(0);
  map.take(3);
  std::set<std::uint32_t> taken;
  while (map.free() > 0) taken.insert(map.take());
  EXPECT_EQ(taken, (std::set<std::uint32_t>{1, 2, 4, 5, 6, 7}));
}

TEST(FreeMap, GoesOnWhereItWas) {
  FreeMap map(100);
  for (int i = 0; i < 10; ++i) (void)map.take();
  map.put(2);
  EXPECT_EQ(map.take(), 10U);
}

}  // namespace
}  // namespace spillway::storage
