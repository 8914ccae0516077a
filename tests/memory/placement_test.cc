#include "spillway/memory/placement.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "spillway/sys/mapping.h"
#include "tests/sys/failing.h"

namespace spillway::memory {
namespace {

std::vector<sys::Node> machine() {
  std::vector<sys::Node> out;
  for (const int id : {0, 1, 2}) out.push_back({.id = id, .total = GiB, .available = GiB});
  return out;
}

std::vector<int> striped(const Striping& striping, std::size_t pages) {
  std::vector<int> out;
  for (std::size_t page = 0; page < pages; ++page) out.push_back(striping.node_of(page));
  return out;
}

Bytes share_of(const Striping& striping, Bytes bytes, int node) {
  for (const NodeBytes& part : striping.shares(bytes)) {
    if (part.node == node) return part.bytes;
  }
  return 0;
}

TEST(WholeWeightsTest, KeepProportions) {
  EXPECT_EQ(whole_weights({1}), std::vector<unsigned>{1});
  EXPECT_EQ(whole_weights({8, 2}), (std::vector<unsigned>{4, 1}));
  EXPECT_EQ(whole_weights({0.5, 0.5}), (std::vector<unsigned>{512, 512}));
  EXPECT_EQ(whole_weights({1e-9, 1}), (std::vector<unsigned>{1, 1024}));
  const auto rates = whole_weights({180.5e9, 45.1e9});
  EXPECT_NEAR(static_cast<double>(rates[0]) / rates[1], 180.5 / 45.1, 0.01);
}

TEST(StripingTest, PagesInTurn) {
  EXPECT_EQ(striped(Striping({.nodes = {0, 2}}, machine()), 5), (std::vector{0, 2, 0, 2, 0}));
}

TEST(StripingTest, WeightsAreSpreadEvenly) {
  const Striping striping({.nodes = {0, 1}, .weights = {4, 1}}, machine());
  const auto pages = striped(striping, 10);
  EXPECT_EQ(std::count(pages.begin(), pages.begin() + 5, 1), 1);
  EXPECT_EQ(std::count(pages.begin() + 5, pages.end(), 1), 1);
}

TEST(StripingTest, PiecesStayTogether) {
  const Striping striping({.nodes = {1, 2}, .granularity = 8 * KiB}, machine());
  EXPECT_EQ(striped(striping, 6), (std::vector{1, 1, 2, 2, 1, 1}));
  EXPECT_FALSE(striping.takes_huge_pages());
  EXPECT_TRUE(Striping({.nodes = {1, 2}, .granularity = 8 * MiB}, machine()).takes_huge_pages());
  EXPECT_TRUE(Striping({.nodes = {1}}, machine()).takes_huge_pages());
}

TEST(StripingTest, SharesAreWhatIsStriped) {
  for (const Bytes granularity : {Bytes{0}, 4 * KiB, 12 * KiB, 2 * MiB}) {
    const Striping striping({.nodes = {0, 1, 2}, .weights = {5, 2, 1}, .granularity = granularity}, machine());
    for (const Bytes bytes : {Bytes{1}, 4 * KiB, 100 * KiB + 1, 6 * MiB, 33 * MiB + 5}) {
      const auto pages = striped(striping, ceil_div(bytes, sys::kPage));
      for (const int node : {0, 1, 2}) {
        EXPECT_EQ(share_of(striping, bytes, node), static_cast<Bytes>(std::ranges::count(pages, node)) * sys::kPage);
      }
    }
  }
}

TEST(StripingTest, WhatMakesNoSenseIsRefused) {
  const auto all = machine();
  EXPECT_ERROR(Striping({.nodes = {0, 7}}, all), ErrorCode::bad_input, "node 7 does not exist");
  EXPECT_ERROR(Striping({.nodes = {1, 1}}, all), ErrorCode::bad_input, "1 is named twice");
  EXPECT_ERROR(Striping({.nodes = {0, 1}, .weights = {1}}, all), ErrorCode::bad_input, "1 for 2 nodes");
  EXPECT_ERROR(Striping({.nodes = {0, 1}, .weights = {1, 0}}, all), ErrorCode::bad_input, "0 is no positive number");
  EXPECT_ERROR(Striping({.nodes = {0, 1}, .weights = {1, -2}}, all), ErrorCode::bad_input, "-2 is no positive number");
  EXPECT_ERROR(Striping({.nodes = {0}, .granularity = 1000}, all), ErrorCode::bad_input, "multiple of 4096");
}

}  // namespace
}  // namespace spillway::memory
