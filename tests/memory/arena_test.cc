#include "spillway/memory/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <utility>

#include "spillway/memory/pages.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/numa.h"
#include "spillway/sys/process.h"
#include "tests/memory/usable_nodes.h"
#include "tests/needs.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::memory {
namespace {

TEST(ArenaTest, IsZeroedAlignedAndOfTheSizeAsked) {
  for (const Bytes size : {Bytes{1}, 4 * KiB, 2 * MiB - 1, 2 * MiB, 2 * MiB + 1, 7 * MiB}) {
    const Arena arena(size);
    EXPECT_EQ(arena.size(), size);
    EXPECT_EQ(arena.span().size(), size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.data()) % (2 * MiB), 0U);
    EXPECT_TRUE(std::ranges::all_of(arena.span(), [](std::byte byte) { return byte == std::byte{0}; }));
    arena.span().back() = std::byte{1};
  }
}

TEST(ArenaTest, TouchDecidesWhetherPagesAreThere) {
  const Bytes before = sys::process_memory().resident;
  const Arena untouched(64 * MiB, {.huge_pages = false, .touch = false});
  EXPECT_LT(sys::process_memory().resident, before + 32 * MiB);
  const Arena touched(64 * MiB);
  EXPECT_GE(sys::process_memory().resident, before + 60 * MiB);
}

TEST(ArenaTest, GivesItsMemoryBack) {
  const Bytes before = sys::process_memory().resident;
  { const Arena arena(128 * MiB); }
  EXPECT_LT(sys::process_memory().resident, before + 64 * MiB);
}

TEST(ArenaTest, EmptyIsEmpty) {
  const Arena none;
  const Arena zero(0);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(zero.data(), nullptr);
  EXPECT_TRUE(zero.span().empty());
}

TEST(ArenaTest, Moves) {
  Arena first(4 * KiB);
  std::byte* data = first.data();
  Arena second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT: a moved-from arena is empty
  Arena third(8 * KiB);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size(), 4 * KiB);
  EXPECT_EQ(second.size(), 0U);  // NOLINT: as above
}

TEST(ArenaTest, LiesInPartsOnItsNodes) {
  SPILLWAY_NEEDS(numa, sys::numa_refusal().empty(), sys::numa_refusal());
  const auto nodes = testing::usable_nodes();
  std::vector<ArenaPart> parts;
  Bytes end = 0;
  for (std::size_t i = 0; i < 12; ++i) {  // huge pages would lie across their boundaries
    const Bytes bytes = (1 + 97 * i) * 4 * KiB;
    parts.push_back({end, end + bytes, on_node(nodes[i % nodes.size()])});
    end += bytes;
  }
  Arena arena(end + 5, parts);
  EXPECT_EQ(arena.size(), end + 5);
  for (const auto& part : parts) {
    const auto range = arena.span().subspan(part.begin, part.end - part.begin);
    EXPECT_EQ(where(range), (std::vector<NodeBytes>{{part.backing.node, range.size()}})) << part.begin;
  }
  EXPECT_TRUE(std::ranges::all_of(arena.span(), [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(ArenaTest, RefusesPartsThatANodeCannotHold) {
  const auto nodes = testing::usable_nodes();
  const Bytes bytes = Bytes{1} << 44;
  EXPECT_ERROR(Arena(bytes, {{0, bytes, on_node(nodes.back())}}), ErrorCode::does_not_fit, "the arena");
  EXPECT_ERROR(Arena(4 * KiB, {{0, 4 * KiB, on_node(4095)}}), ErrorCode::bad_input, "4095");
}

TEST(ArenaTest, LiesInPartsInFiles) {
  const testing::TemporaryDirectory one, other;
  const auto first = in_file(one.path()), second = in_file(other.path());
  const std::vector<ArenaPart> parts{{0, 2 * MiB, first},
                                     {2 * MiB, 3 * MiB, anywhere()},
                                     {3 * MiB, 3 * MiB + 12 * KiB, second},
                                     {3 * MiB + 12 * KiB, 4 * MiB, first},
                                     {4 * MiB, 5 * MiB, anywhere()}};
  const auto before = sys::process_memory().resident;
  Arena arena(5 * MiB, parts);
  EXPECT_GE(sys::process_memory().resident, before + 4 * MiB);
  EXPECT_TRUE(std::ranges::all_of(arena.span(), [](std::byte byte) { return byte == std::byte{0}; }));
  std::ranges::fill(arena.span(), std::byte{5});
  const auto there = held(arena.span(), parts);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    EXPECT_EQ(there[p].there, parts[p].bytes()) << p;
    EXPECT_EQ(there[p].in_memory, parts[p].bytes()) << p;
  }
  EXPECT_EQ(held(arena.span(), {{2 * MiB, 3 * MiB, first}}).front().there, 0U) << "anonymous memory is in no file";
  EXPECT_EQ(arena.pinnable().data(), arena.data() + 4 * MiB);
  EXPECT_EQ(arena.pinnable().size(), 1 * MiB);
  EXPECT_TRUE(std::filesystem::is_empty(one.path())) << "the file has a name";
}

TEST(ArenaTest, RefusesFilesThatCannotBe) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer leaves no room in the address space for what no file can hold";
#endif
  const testing::TemporaryDirectory directory;
  const Bytes bytes = Bytes{1} << 43;
  EXPECT_ERROR(Arena(bytes, {{0, bytes, in_file(directory.path())}}), ErrorCode::does_not_fit, "--memory_file");
  EXPECT_ERROR(Arena(4 * KiB, {{0, 4 * KiB, in_file(directory.path() / "none")}}), ErrorCode::bad_input, "none");
}

TEST(ArenaTest, RefusesWhatTheKernelRefuses) {
  EXPECT_ERROR(Arena(Bytes{1} << 60), ErrorCode::does_not_fit, "1152921504606846976 bytes");
  EXPECT_ERROR(Arena(std::numeric_limits<Bytes>::max()), ErrorCode::does_not_fit, "dram_budget");
}

}  // namespace
}  // namespace spillway::memory
