// A search over rows of axes: each beside the best values of those before it, or for each value those below it again.
#include "spillway/plan/coordinate_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <tuple>

namespace spillway::plan {
namespace {

/// Values of three axes.
struct Point {
  int tiers = 0, blocks = 0, layers = 0;

  auto operator<=>(const Point&) const = default;
};

/// Costs of points, and the axes that are open.
struct Landscape {
  std::function<double(const Point&)> cost;
  int most = 4;  ///< largest value of an axis
  bool has_tiers = true, has_blocks = true, has_layers = true;
};

class Points {
 public:
  explicit Points(const Landscape& landscape) : landscape_(landscape) {}

  void add(const Point& point) {
    ++asked_[point];
    if (asked_.size() == 1 || landscape_.cost(point) < landscape_.cost(best_)) best_ = point;
  }
  void add(Axis /*axis*/, const Point& point) { add(point); }
  [[nodiscard]] bool is_led_by(const Point& start) const { return !asked_.empty() && best_.tiers == start.tiers; }
  [[nodiscard]] Point best_values() const { return best_; }
  [[nodiscard]] bool has_tradeoff() const { return true; }
  [[nodiscard]] const std::map<Point, int>& asked() const { return asked_; }

 private:
  const Landscape& landscape_;
  std::map<Point, int> asked_;
  Point best_;
};

using Search = CoordinateSearch<Landscape, Point, Points>;

template <int Point::*value>
void compare(const Landscape& landscape, const Point& from, Points& points, const Search& /*below*/) {
  auto point = from;
  for (point.*value = 0; point.*value <= landscape.most; point.*value += 2) points.add(point);
}

template <int Point::*value>
std::vector<Point> near(const Landscape& landscape, const Point& from) {
  std::vector<Point> out;
  for (const auto step : {-1, 1}) {
    auto point = from;
    point.*value += step;
    if (point.*value >= 0 && point.*value <= landscape.most) out.push_back(point);
  }
  return out;
}

void compare_tiers(const Landscape& landscape, const Point& from, Points& points, const Search& below) {
  for (auto point = from; point.tiers <= landscape.most; ++point.tiers) below.run_from(point);
  EXPECT_FALSE(points.asked().empty());
}

constexpr std::array<Search::Row, 3> kRows = {{
    {.axis = Axis::memory_tiers,
     .is_open = [](const Landscape& it) { return it.has_tiers; },
     .compare = compare_tiers,
     .below = 2},
    {.axis = Axis::device_blocks,
     .is_open = [](const Landscape& it) { return it.has_blocks; },
     .compare = compare<&Point::blocks>,
     .near = near<&Point::blocks>},
    {.axis = Axis::saved_activations,
     .is_open = [](const Landscape& it) { return it.has_layers; },
     .compare = compare<&Point::layers>,
     .near = near<&Point::layers>},
}};

Point search(const Landscape& landscape, const Point& start = {}, Axes given = {}, bool refines = false) {
  Points points(landscape);
  const Search search(landscape, kRows, points, given);
  search.run_from(start);
  if (refines) search.refine();
  return points.best_values();
}

double distance(const Point& from, const Point& to) {
  return std::abs(from.tiers - to.tiers) + std::abs(from.blocks - to.blocks) + std::abs(from.layers - to.layers);
}

TEST(CoordinateSearch, AnAxisIsComparedBesideTheBestValuesOfThoseBefore) {
  const Landscape landscape{.cost = [](const Point& it) { return distance(it, {0, 2, 4}); }, .has_tiers = false};
  Points points(landscape);
  Search(landscape, kRows, points).run_from({});
  EXPECT_EQ(points.best_values(), (Point{0, 2, 4}));
  EXPECT_TRUE(points.asked().contains({0, 4, 0}));
  EXPECT_TRUE(points.asked().contains({0, 2, 4}));
  EXPECT_FALSE(points.asked().contains({0, 4, 4})) << "layers are compared beside 2 blocks alone";
}

TEST(CoordinateSearch, RowsBelowAreSearchedAgainForEachValue) {
  const Landscape landscape{.cost = [](const Point& it) { return distance(it, {3, it.tiers == 3 ? 4 : 0, 2}); }};
  EXPECT_EQ(search(landscape), (Point{3, 4, 2}));
}

TEST(CoordinateSearch, AxesThatAreClosedOrGivenKeepTheValueOfTheStart) {
  Landscape landscape{.cost = [](const Point& it) { return distance(it, {4, 4, 4}); }};
  Axes given;
  given.set(static_cast<std::size_t>(Axis::device_blocks));
  EXPECT_EQ(search(landscape, {0, 1, 0}, given), (Point{4, 1, 4}));
  landscape.has_tiers = landscape.has_layers = false;
  EXPECT_EQ(search(landscape, {1, 0, 3}), (Point{1, 4, 3}));
  landscape.has_blocks = false;
  EXPECT_EQ(search(landscape, {1, 2, 3}), (Point{1, 2, 3})) << "the start alone is made";
}

TEST(CoordinateSearch, RefinementEndsWhereNoNeighbourIsBetter) {
  // The best number of blocks depends on that of layers: a pass over both finds one of them too early.
  const Landscape landscape{
      .cost = [](const Point& it) { return 3 * std::abs(it.blocks + it.layers - 5) + std::abs(it.layers - 3); },
      .has_tiers = false};
  const auto first = search(landscape), refined = search(landscape, {}, {}, true);
  EXPECT_LT(landscape.cost(refined), landscape.cost(first));
  for (const auto& row : kRows) {
    if (row.near == nullptr) continue;
    for (const auto& other : row.near(landscape, refined)) EXPECT_GE(landscape.cost(other), landscape.cost(refined));
  }
}

TEST(CoordinateSearch, OneOpenAxisHasNothingToRefine) {
  const Landscape landscape{.cost =
                                [](const Point& it) {
                                  return distance(it, {0, 3, 0});
                                },
                            .has_tiers = false,
                            .has_layers = false};
  EXPECT_EQ(search(landscape, {}, {}, true), search(landscape)) << "its domain was searched";
}

}  // namespace
}  // namespace spillway::plan
