#include "spillway/storage/lock.h"

#include <thread>

#include "spillway/base/interrupt.h"

namespace spillway::storage {
namespace {

constexpr auto kBetweenAttempts = std::chrono::milliseconds(2);

}  // namespace

bool lock_within(const sys::File& file, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!file.lock()) {
    throw_if_interrupted();
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kBetweenAttempts);
  }
  return true;
}

}  // namespace spillway::storage
