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
  std::array<Entry, kEntries> slowest = entries;
  const std::size_t used = std::min(count, kEntries);
  std::sort(slowest.begin(), slowest.begin() + used,
            [](const Entry& a, const Entry& b) { return a.cost() > b.cost(); });
  Entry sum;
  for (std::size_t i = 1; i <= used / 2; ++i) {
    sum.bytes += slowest[i].bytes;
    sum.seconds += slowest[i].seconds;
  }
  return sum.cost();
}

}  // namespace spillway::storage
