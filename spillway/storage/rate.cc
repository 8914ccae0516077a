#include "spillway/storage/rate.h"

#include <algorithm>
#include <utility>

namespace spillway::storage {

Rate::Rate(const Speed& expected, const Speed& any)
    : read_{1 / (expected.read > 0 ? expected.read : any.read), expected.read <= 0, {}},
      write_{1 / (expected.write > 0 ? expected.write : any.write), expected.write <= 0, {}} {
  guess();
}

/// A direction that is known is the best guess for the other.
void Rate::guess() noexcept {
  if (read_.guessed && !write_.guessed) read_.cost = write_.cost;
  if (write_.guessed && !read_.guessed) write_.cost = read_.cost;
}

void Rate::add(Direction direction, Bytes bytes, double busy, double idle) {
  (direction == Direction::read ? read_ : write_).add(static_cast<double>(bytes), busy, idle);
  guess();
}

void Rate::Window::add(double bytes, double busy, double idle) {
  open.bytes += bytes;
  open.busy += busy;
  open.idle += idle;
  if (open.bytes < static_cast<double>(kEntryBytes) || open.busy + open.idle < kEntrySeconds) return;
  entries[count++ % kEntries] = std::exchange(open, {});
  if (count >= kFewest) move();
}

void Rate::Window::move() noexcept {
  const double least = busy_cost();
  const Entry all = sum();
  const double seconds = all.busy + all.idle;
  const bool known = std::exchange(guessed, false) || all.busy >= kBusy * seconds;
  const double reach = std::max(cost / kGrowth, seconds / all.bytes / kHeadroom);
  cost = known ? least : std::max(least, std::min(cost, reach));
}

double Rate::Window::busy_cost() const noexcept {
  std::array<Entry, kEntries> slowest = entries;
  const std::size_t used = std::min(count, kEntries);
  const auto slower = [](const Entry& a, const Entry& b) { return a.cost() > b.cost(); };
  std::partial_sort(slowest.begin(), slowest.begin() + used / 2 + 1, slowest.begin() + used, slower);
  Entry sum;
  for (std::size_t i = 1; i <= used / 2; ++i) {
    sum.bytes += slowest[i].bytes;
    sum.busy += slowest[i].busy;
  }
  return sum.cost();
}

Rate::Entry Rate::Window::sum() const noexcept {
  Entry sum;
  for (const Entry& entry : entries) {  // those that were not closed yet are zeros
    sum.bytes += entry.bytes;
    sum.busy += entry.busy;
    sum.idle += entry.idle;
  }
  return sum;
}

}  // namespace spillway::storage
