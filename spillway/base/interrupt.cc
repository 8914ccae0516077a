#include "spillway/base/interrupt.h"

#include <atomic>
#include <chrono>

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kBetween = std::chrono::milliseconds(20);

std::atomic<void (*)()> asked = nullptr;

}  // namespace

void throw_if_interrupted() {
  thread_local Clock::time_point next;
  auto* const ask = asked.load(std::memory_order_relaxed);
  if (ask == nullptr) return;
  const auto now = Clock::now();
  if (now < next) return;
  next = now + kBetween;
  ask();
}

void on_interrupt(void (*ask)()) {
  asked.store(ask, std::memory_order_relaxed);
}

}  // namespace spillway
