#include "spillway/storage/rate.h"

#include <algorithm>
#include <utility>

namespace spillway::storage {

Rate::Rate(const Speed& expected, const Speed& any)
    : read_{1 / (expected.read > 0 ? expected.read : any.read), expected.read <= 0, {}},
      write_{1 / (expected.write > 0 ? expected.write : any.write), expected.write <= 0, {}} {
  guess();
}

/// Of two directions, a known one is the best guess for the other.
void Rate::guess() noexcept {
  if (read_.guessed && !write_.guessed) read_.cost = write_.cost;
  if (write_.guessed && !read_.guessed) write_.cost = read_.cost;
}

void Rate::add(Direction direction, Bytes bytes, double seconds) {
  (direction == Direction::read ? read_ : write_).add(static_cast<double>(bytes), seconds);
  guess();
}

void Rate::Window::add(double bytes, double seconds) {
  open.bytes += bytes;
  open.seconds += seconds;
  if (open.bytes < static_cast<double>(kEntryBytes) || open.seconds < kEntrySeconds) return;
  entries[count++ % kEntries] = std::exchange(open, {});
  if (count < kFewest) return;
  cost = mean();
  guessed = false;
}

double Rate::Window::mean() const noexcept {
  const std::size_t used = std::min(count, kEntries);
  Entry sum, best = entries[0], worst = entries[0];
  for (std::size_t i = 0; i < used; ++i) {
    sum.bytes += entries[i].bytes;
    sum.seconds += entries[i].seconds;
    if (entries[i].cost() < best.cost()) best = entries[i];
    if (entries[i].cost() >= worst.cost()) worst = entries[i];
  }
  return (sum.seconds - best.seconds - worst.seconds) / (sum.bytes - best.bytes - worst.bytes);
}

}  // namespace spillway::storage
