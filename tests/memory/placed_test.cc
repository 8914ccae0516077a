// Every way to place memory, each page asked of the kernel. On a machine with one node what needs several is skipped;
// `make numa` runs it in a virtual machine with three.
#include "spillway/memory/placed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "spillway/memory/pages.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/numa.h"
#include "spillway/sys/process.h"
#include "tests/memory/usable_nodes.h"
#include "tests/needs.h"
#include "tests/sys/child.h"
#include "tests/sys/failing.h"

namespace spillway::memory {
namespace {

/// What an emulated CXL card takes in a moment.
const Bytes kSmall = 2 * MiB;

std::vector<int> pages_of(std::span<const std::byte> range) {
  std::vector<int> out(sys::page_count(range));
  EXPECT_EQ(sys::page_nodes(range, out), 0);
  return out;
}

/// Each page where `placement` says, by an own account of it.
void expect_striped(std::span<const std::byte> range, const Placement& placement) {
  const auto pages = pages_of(range);
  const Striping striping(placement, sys::nodes());
  std::size_t wrong = 0;
  for (std::size_t page = 0; page < pages.size(); ++page) wrong += pages[page] == striping.node_of(page) ? 0 : 1;
  EXPECT_EQ(wrong, 0U) << "of " << pages.size() << " pages";
}

void number(std::span<std::byte> range) {
  for (std::size_t i = 0; i < range.size(); ++i) range[i] = static_cast<std::byte>(i * 2654435761U >> 13);
}
void expect_numbered(std::span<const std::byte> range) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < range.size(); ++i)
    wrong += range[i] == static_cast<std::byte>(i * 2654435761U >> 13) ? 0 : 1;
  EXPECT_EQ(wrong, 0U);
}

class PlacedTest : public ::testing::Test {
 protected:
  void SetUp() override { SPILLWAY_NEEDS(numa, sys::numa_refusal().empty(), sys::numa_refusal()); }
  const std::vector<int> nodes_ = testing::usable_nodes();
};

class PlacedOnSeveralTest : public PlacedTest {
 protected:
  void SetUp() override {
    PlacedTest::SetUp();
    SPILLWAY_NEEDS(nodes, nodes_.size() >= 3, "this machine has fewer than three NUMA nodes; make numa has three");
  }
  const int far_ = nodes_.back();
  const int near_ = nodes_.size() > 1 ? nodes_[nodes_.size() - 2] : nodes_.back();
};

TEST_F(PlacedTest, IsZeroedAlignedAndOfTheSizeAsked) {
  for (const int node : nodes_) {
    for (const Bytes size : {Bytes{1}, 4 * KiB, 4 * KiB + 1, kSmall, kSmall + 4 * KiB}) {
      const Placed placed(size, {.nodes = {node}});
      EXPECT_EQ(placed.span().size(), size);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(placed.span().data()) % (size < kSmall ? 4 * KiB : kSmall), 0U);
      EXPECT_TRUE(std::ranges::all_of(placed.span(), [](std::byte byte) { return byte == std::byte{0}; }));
    }
  }
}

TEST_F(PlacedTest, LiesOnItsNode) {
  for (const int node : nodes_) {
    for (const bool huge : {true, false}) {
      const Placed placed(kSmall + 12 * KiB, {.nodes = {node}}, {.huge_pages = huge});
      expect_striped(placed.span(), {.nodes = {node}});
      EXPECT_EQ(where(placed.span()), (std::vector<NodeBytes>{{node, kSmall + 12 * KiB}}));
    }
  }
}

TEST_F(PlacedTest, WithoutAWishIsTouchedAllTheSame) {
  const Placed placed(kSmall, {});
  for (const NodeBytes& part : where(placed.span())) EXPECT_NE(part.node, sys::kAbsent);
}

TEST_F(PlacedTest, MemoryIsGivenBack) {
  const Bytes before = sys::process_memory().resident;
  for (int i = 0; i < 4; ++i) {
    const Placed placed(64 * MiB, {.nodes = {nodes_.front()}});
    EXPECT_GE(sys::process_memory().resident, before + 60 * MiB);
  }
  EXPECT_LT(sys::process_memory().resident, before + 32 * MiB);
}

TEST_F(PlacedTest, MoreThanANodeHasIsRefusedAndTheProcessLives) {
  for (const int node : nodes_) {
    const auto machine = sys::nodes();
    const Bytes beyond = sys::find_node(machine, node).total + 64 * MiB;
    EXPECT_ERROR(Placed(beyond, {.nodes = {node}}), ErrorCode::does_not_fit, text("node ", node, " cannot hold"));
  }
}

TEST_F(PlacedTest, MoreThanTheMachineHasIsRefusedWithoutAWishToo) {
  const Bytes beyond = sys::dram_facts().total + GiB;
  EXPECT_ERROR(Placed(beyond, {}), ErrorCode::does_not_fit, "this process can take");
  EXPECT_ERROR(Placed(beyond, {.nodes = {nodes_.front()}, .strict = false}), ErrorCode::does_not_fit,
               "this process can take");
}

TEST_F(PlacedTest, ANodeThatDoesNotExistIsRefused) {
  EXPECT_ERROR(Placed(kSmall, {.nodes = {999}}), ErrorCode::bad_input, "node 999 does not exist");
}

TEST_F(PlacedTest, WhereCountsBytesNotPages) {
  const Placed placed(3 * sys::kPage, {.nodes = {nodes_.front()}});
  EXPECT_EQ(where(placed.span().subspan(100, 5000)), (std::vector<NodeBytes>{{nodes_.front(), 5000}}));
  EXPECT_TRUE(where({}).empty());
}

TEST_F(PlacedTest, WhatNobodyTouchedIsAbsent) {
  const sys::Mapping mapping(4 * sys::kPage);
  mapping.span()[0] = std::byte{1};
  const auto parts = where(mapping.span());
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0], (NodeBytes{sys::kAbsent, 3 * sys::kPage}));
  EXPECT_EQ(parts[1].bytes, sys::kPage);
}

TEST_F(PlacedTest, ManyAtOnce) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      const Placed placed(kSmall, {.nodes = {nodes_.back()}});
      expect_striped(placed.span(), {.nodes = {nodes_.back()}});
    });
  }
}

TEST_F(PlacedOnSeveralTest, PageInterleaved) {
  const Placement placement{.nodes = {near_, far_}};
  const Placed placed(kSmall, placement);
  expect_striped(placed.span(), placement);
  EXPECT_EQ(where(placed.span()), (std::vector<NodeBytes>{{near_, kSmall / 2}, {far_, kSmall / 2}}));
}

TEST_F(PlacedOnSeveralTest, OverAllNodes) {
  const Placement placement{.nodes = nodes_};
  const Placed placed(kSmall + sys::kPage, placement);
  expect_striped(placed.span(), placement);
}

TEST_F(PlacedOnSeveralTest, Weighted) {
  const Placement placement{.nodes = {near_, far_}, .weights = {3, 1}};
  const Placed placed(kSmall, placement);
  expect_striped(placed.span(), placement);
  EXPECT_EQ(where(placed.span()), (std::vector<NodeBytes>{{near_, kSmall / 4 * 3}, {far_, kSmall / 4}}));
}

TEST_F(PlacedOnSeveralTest, WeightedByMeasuredRates) {
  const Placement placement{.nodes = {near_, far_}, .weights = {24.7e9, 6.1e9}};
  const Placed placed(kSmall, placement);
  expect_striped(placed.span(), placement);
}

TEST_F(PlacedOnSeveralTest, StripedByPieces) {
  for (const Bytes granularity : {64 * KiB, 2 * MiB}) {
    const Placement placement{.nodes = {near_, far_}, .granularity = granularity};
    const Placed placed(2 * kSmall + 20 * KiB, placement);
    expect_striped(placed.span(), placement);
  }
}

TEST_F(PlacedOnSeveralTest, PreferredSpillsOver) {
  if (std::getenv("SPILLWAY_MACHINE") == std::string("cxl")) GTEST_SKIP() << "filling an emulated card takes minutes";
  const auto machine = sys::nodes();
  const Bytes size = sys::find_node(machine, far_).total + 16 * MiB;
  const Placed placed(size, {.nodes = {far_}, .strict = false});
  const auto parts = where(placed.span());
  EXPECT_GE(parts.size(), 2U);
  EXPECT_EQ(parts.back().node, far_);
}

/// Between the look at free memory and its use another process takes it.
TEST_F(PlacedOnSeveralTest, AFullNodeIsRefusedAlsoWhenItLookedFree) {
  if (std::getenv("SPILLWAY_MACHINE") == std::string("cxl")) GTEST_SKIP() << "filling an emulated card takes minutes";
  const Bytes room = sys::takeable(sys::find_node(sys::nodes(), far_));
  std::vector<std::unique_ptr<Placed>> held;
  const auto take = [&](Bytes bytes) {
    try {
      held.push_back(std::make_unique<Placed>(bytes, Placement{.nodes = {far_}}));
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
      return false;
    }
  };
  ASSERT_TRUE(take(room / 2));
  // Pages without a look first, as another process would take them.
  const sys::Mapping other(room / 2 + 8 * MiB);
  ASSERT_EQ(sys::set_memory_policy(other.span(), sys::MemoryPolicy::preferred, {&far_, 1}), 0);
  ASSERT_TRUE(sys::populate(other.span()));
  EXPECT_FALSE(take(room / 2));
  expect_striped(held.front()->span(), {.nodes = {far_}});
}

TEST_F(PlacedOnSeveralTest, MovesToEveryPlacementAndKeepsItsBytes) {
  const Bytes size = 2 * kSmall + 12 * KiB;
  const Placed placed(size, {.nodes = {nodes_.front()}});
  number(placed.span());
  const std::vector<Placement> placements = {
      {.nodes = {far_}},
      {.nodes = {near_, far_}, .granularity = 2 * MiB},
      {.nodes = {near_}},
      {.nodes = {near_, far_}},  // splits huge pages
      {.nodes = {near_, far_}, .weights = {3, 1}},
      {.nodes = nodes_, .granularity = 64 * KiB},
      {.nodes = {nodes_.front()}},
  };
  for (const Placement& placement : placements) {
    move(placed.span(), placement);
    expect_striped(placed.span(), placement);
    expect_numbered(placed.span());
  }
}

TEST_F(PlacedOnSeveralTest, APartMovesAndTheRestStays) {
  const Placed placed(2 * kSmall, {.nodes = {near_}}, {.huge_pages = false});
  number(placed.span());
  move(placed.span().subspan(kSmall, kSmall), {.nodes = {far_}});
  EXPECT_EQ(where(placed.span()), (std::vector<NodeBytes>{{near_, kSmall}, {far_, kSmall}}));
  expect_numbered(placed.span());
}

TEST_F(PlacedOnSeveralTest, AMoveThatDoesNotFitChangesNothing) {
  if (std::getenv("SPILLWAY_MACHINE") == std::string("cxl")) GTEST_SKIP() << "filling an emulated card takes minutes";
  const Bytes size = sys::find_node(sys::nodes(), far_).total + 8 * MiB;
  const Placed placed(size, {.nodes = {nodes_.front()}});
  const auto before = where(placed.span());
  EXPECT_ERROR(move(placed.span(), {.nodes = {far_}}), ErrorCode::does_not_fit, text("node ", far_, " cannot hold"));
  EXPECT_EQ(where(placed.span()), before);
}

TEST_F(PlacedTest, ToANodeThatDoesNotExistNothingMoves) {
  const Placed placed(kSmall, {.nodes = {nodes_.front()}});
  EXPECT_ERROR(move(placed.span(), {.nodes = {999}}), ErrorCode::bad_input, "node 999");
  EXPECT_EQ(where(placed.span()), (std::vector<NodeBytes>{{nodes_.front(), kSmall}}));
}

}  // namespace
}  // namespace spillway::memory
