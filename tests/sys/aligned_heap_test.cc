#include "spillway/sys/aligned_heap.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace spillway::sys {
namespace {

constexpr std::size_t kTensor = std::size_t{256} << 10;

void* aligned_block(std::size_t size, std::size_t alignment = kAlignment) {
  void* block = nullptr;
  EXPECT_EQ(aligned(&block, alignment, size), 0);
  return block;
}

TEST(AlignedHeapTest, BlocksAreAlignedAndHoldWhatWasAskedFor) {
  for (const std::size_t size : {1U, 100U, 4095U, 4096U, 4097U, 4152U, 4153U, 70'000U})
    for (const std::size_t alignment : {8U, 16U, 64U, 128U, 4096U}) {
      void* const block = aligned_block(size, alignment);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % alignment, 0U) << size << " at " << alignment;
      std::memset(block, 1, size);
      std::free(block);
    }
}

#if defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(AlignedHeapTest, RefusesAsTheCLibraryDoes) {
  void* block = nullptr;
  EXPECT_EQ(aligned(&block, kAlignment, std::numeric_limits<std::size_t>::max() - 100), ENOMEM);
  EXPECT_EQ(aligned(&block, kAlignment, std::numeric_limits<std::size_t>::max() / 4), ENOMEM);
  EXPECT_EQ(aligned(&block, 3, kTensor), EINVAL);
}

TEST(AlignedHeapTest, AHoleServesTheNextBlockOfItsSize) {
  ::mallopt(M_MMAP_MAX, 0);  // as process_memory.settle has it: all lie in the heap
  std::vector<void*> blocks, small;
  for (int number = 0; number < 64; ++number) {
    blocks.push_back(aligned_block(kTensor));
    for (int count = 0; count < 4; ++count) small.push_back(std::malloc(80));  // they take what lies between blocks
  }
  for (std::size_t number = 0; number < blocks.size(); number += 2) std::free(blocks[number]);
  const auto before = ::mallinfo2();
  for (std::size_t number = 0; number < blocks.size(); number += 2) blocks[number] = aligned_block(kTensor);
  const auto after = ::mallinfo2();
  // Where the heap began aside of a line, a hole or two begin there as well.
  EXPECT_LT(after.arena - after.keepcost, before.arena - before.keepcost + 4 * kTensor);
  for (void* const block : blocks) std::free(block);
  for (void* const block : small) std::free(block);
  ::mallopt(M_MMAP_MAX, 65536);  // glibc's default
}
#endif

TEST(AlignedHeapTest, ALibraryThatIsNotLoadedIsLeftAlone) {
  const std::vector<std::string> libraries{"libnothing.so"};
  EXPECT_EQ(redirect_posix_memalign(libraries), 0U);
}

}  // namespace
}  // namespace spillway::sys
