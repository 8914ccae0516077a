#include "tests/storage/allocations.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

namespace {
std::atomic<std::uint64_t> allocation_count = 0;
}

[[gnu::noinline]] void* operator new(std::size_t size) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t& /*none*/) noexcept {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size > 0 ? size : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}

namespace spillway::storage::testing {

std::uint64_t allocations() noexcept {
  return allocation_count.load();
}

namespace {

TEST(AllocationsTest, AreCounted) {
  const auto before = allocations();
  const auto one = std::make_unique<std::uint64_t>(before);
  EXPECT_GT(allocations(), *one);
}

}  // namespace
}  // namespace spillway::storage::testing
