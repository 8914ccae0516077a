#include "tests/calls/allocations.h"

#include <cstdlib>
#include <new>

namespace spillway::calls {
namespace {

std::atomic<std::atomic<std::uint64_t>*> counter{nullptr};
std::uint64_t failing = 0;
bool for_ever = false;

bool refused() {
  auto* const count = counter.load(std::memory_order_acquire);
  if (count == nullptr) return false;
  const auto n = count->fetch_add(1, std::memory_order_relaxed) + 1;
  return failing != 0 && (for_ever ? n >= failing : n == failing);
}

}  // namespace

void arm(std::uint64_t first, bool forever, std::atomic<std::uint64_t>& count) {
  failing = first;
  for_ever = forever;
  counter.store(&count, std::memory_order_release);
}

void disarm() {
  counter.store(nullptr, std::memory_order_release);
}

}  // namespace spillway::calls

void* operator new(std::size_t bytes) {
  void* const memory = spillway::calls::refused() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  const auto whole = (bytes + unit - 1) / unit * unit;
  void* const memory = spillway::calls::refused() ? nullptr : std::aligned_alloc(unit, whole);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* operator new(std::size_t bytes, const std::nothrow_t& /*none*/) noexcept {
  return spillway::calls::refused() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
