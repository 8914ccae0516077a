#include "spillway/storage/lock.h"

#include <thread>

#include "spillway/base/interrupt.h"
#include "spillway/sys/lock_taker.h"

namespace spillway::storage {
namespace {

constexpr auto kBetweenAttempts = std::chrono::milliseconds(2);
constexpr auto kOfTheDead = std::chrono::minutes(1);

}  // namespace

bool lock_within(const sys::File& file, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!file.lock()) {
    throw_if_interrupted();
    const auto late = std::chrono::steady_clock::now() - end;
    if (late >= late.zero() && (late >= kOfTheDead || !sys::is_locked_by_the_dead(file))) return file.lock();
    std::this_thread::sleep_for(kBetweenAttempts);
  }
  return true;
}

}  // namespace spillway::storage
