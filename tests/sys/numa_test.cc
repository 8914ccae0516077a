#include "spillway/sys/numa.h"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <thread>

#include "spillway/sys/mapping.h"
#include "spillway/sys/nodes.h"
#include "tests/needs.h"
#include "tests/sys/child.h"
#include "tests/sys/fake_nodes.h"

namespace spillway::sys {
namespace {

std::vector<int> usable_nodes() {
  std::vector<int> out;
  for (const Node& node : nodes()) {
    if (node.has_memory() && node.allowed) out.push_back(node.id);
  }
  return out;
}

std::vector<int> where(std::span<const std::byte> range) {
  std::vector<int> out(page_count(range));
  EXPECT_EQ(page_nodes(range, out), 0);
  return out;
}

bool all(const std::vector<int>& pages, int node) {
  return std::ranges::all_of(pages, [&](int page) { return page == node; });
}

class NumaTest : public ::testing::Test {
 protected:
  void SetUp() override { SPILLWAY_NEEDS(numa, numa_refusal().empty(), numa_refusal()); }
  Mapping memory_{64 * kPage};
  const std::vector<int> nodes_ = usable_nodes();
  const int last_ = nodes_.back();
};

TEST(PageCountTest, CountsWhatARangeTouches) {
  const Mapping memory(4 * kPage);
  EXPECT_EQ(page_count({}), 0U);
  EXPECT_EQ(page_count(memory.span()), 4U);
  EXPECT_EQ(page_count(memory.span().subspan(1, kPage)), 2U);
  EXPECT_EQ(page_count(memory.span().subspan(kPage - 1, 1)), 1U);
}

TEST_F(NumaTest, PagesThatNobodyTouchedAreAbsent) {
  EXPECT_TRUE(all(where(memory_.span()), kAbsent));
  memory_.span()[3 * kPage] = std::byte{1};
  EXPECT_EQ(std::ranges::count(where(memory_.span()), kAbsent), 63);
}

TEST_F(NumaTest, APolicyDecidesWherePagesComeToBe) {
  for (const auto policy : {MemoryPolicy::preferred, MemoryPolicy::bind}) {
    const Mapping memory(8 * MiB);
    ASSERT_EQ(set_memory_policy(memory.span(), policy, {&last_, 1}), 0);
    ASSERT_TRUE(populate(memory.span()));
    EXPECT_TRUE(all(where(memory.span()), last_));
  }
}

TEST_F(NumaTest, AThreadsPolicyDecidesToo) {
  std::thread([&] {
    ASSERT_EQ(set_thread_memory_policy(MemoryPolicy::preferred, {&last_, 1}), 0);
    ASSERT_TRUE(populate(memory_.span()));
  }).join();
  EXPECT_TRUE(all(where(memory_.span()), last_));
}

TEST_F(NumaTest, InterleavingIsEven) {
  ASSERT_EQ(set_memory_policy(memory_.span(), MemoryPolicy::interleave, nodes_), 0);
  ASSERT_TRUE(populate(memory_.span()));
  const auto pages = where(memory_.span());
  const auto share = static_cast<std::ptrdiff_t>(pages.size() / nodes_.size());
  for (const int node : nodes_) {
    EXPECT_GE(std::ranges::count(pages, node), share);
    EXPECT_LE(std::ranges::count(pages, node), share + 1);
  }
}

TEST_F(NumaTest, MovesPagesAndKeepsTheirBytes) {
  ASSERT_TRUE(populate(memory_.span()));
  for (std::size_t page = 0; page < 64; ++page) memory_.span()[page * kPage] = static_cast<std::byte>(page);
  std::vector<int> to(64, kAbsent);
  const auto before = where(memory_.span());
  for (std::size_t page = 0; page < 64; page += 2) to[page] = nodes_[page / 2 % nodes_.size()];
  ASSERT_EQ(move_pages(memory_.span(), to), 0);
  const auto after = where(memory_.span());
  for (std::size_t page = 0; page < 64; ++page) {
    EXPECT_EQ(after[page], to[page] == kAbsent ? before[page] : to[page]);
    EXPECT_EQ(memory_.span()[page * kPage], static_cast<std::byte>(page));
  }
}

TEST_F(NumaTest, ANodeThatDoesNotExistIsRefused) {
  const int beyond = 1000;
  EXPECT_NE(set_memory_policy(memory_.span(), MemoryPolicy::bind, {&beyond, 1}), 0);
  ASSERT_TRUE(populate(memory_.span()));
  EXPECT_NE(move_pages(memory_.span(), std::vector<int>(64, beyond)), 0);
}

TEST(NumaBindingTest, IsSeenAsPermission) {
  EXPECT_EQ(testing::in_child([] {
              const int node = usable_nodes().front();
              if (set_thread_memory_policy(MemoryPolicy::bind, {&node, 1}) != 0) return 0;  // as NumaTest says
              return bound_nodes() == std::vector{node} ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(bound_nodes().empty());
}

/// As the default profile of containers does.
bool forbid_numa_calls() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_move_pages, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_get_mempolicy, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(NumaRefusalTest, IsSaid) {
  const int status = testing::in_child([] {
    if (!forbid_numa_calls()) return testing::kCannotTry;
    return try_numa_calls().starts_with("mbind: Operation not permitted (EPERM)") ? 0 : 1;
  });
  SPILLWAY_NEEDS(seccomp, status != testing::kCannotTry, "no system call filters here");
  EXPECT_EQ(status, 0);
}

TEST(WeightedInterleaveTest, ReadsTheKernelsWeights) {
  testing::FakeNodes machine;
  EXPECT_TRUE(weighted_interleave(machine.root()).empty());
  machine.write("sys/kernel/mm/mempolicy/weighted_interleave/node0", "4\n");
  machine.write("sys/kernel/mm/mempolicy/weighted_interleave/node2", "1\n");
  machine.write("sys/kernel/mm/mempolicy/weighted_interleave/auto", "false\n");
  EXPECT_EQ(weighted_interleave(machine.root()), (std::vector<unsigned>{4, 0, 1}));
}

TEST(AffinityTest, KeepsAThreadOnACpu) {
  const auto mine = thread_affinity();
  ASSERT_FALSE(mine.empty());
  std::thread([&] {
    EXPECT_TRUE(set_thread_affinity({&mine.back(), 1}));
    EXPECT_EQ(thread_affinity(), std::vector{mine.back()});
    const unsigned none = 8000;
    EXPECT_FALSE(set_thread_affinity({&none, 1}));
    EXPECT_EQ(thread_affinity(), std::vector{mine.back()});
  }).join();
  EXPECT_EQ(thread_affinity(), mine);
}

}  // namespace
}  // namespace spillway::sys
