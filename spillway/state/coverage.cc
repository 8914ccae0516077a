#include "spillway/state/coverage.h"

#include <algorithm>
#include <iterator>

namespace spillway::state {

bool Coverage::add(Bytes begin, Bytes end) {
  if (begin == end) return true;
  auto next = ends_.upper_bound(begin);
  if (next != ends_.end() && next->first < end) return false;
  if (next != ends_.begin()) {
    const auto before = std::prev(next);
    if (before->second > begin) return false;
    if (before->second == begin) {
      begin = before->first;
      ends_.erase(before);
    }
  }
  if (next != ends_.end() && next->first == end) {
    end = next->second;
    ends_.erase(next);
  }
  ends_.emplace(begin, end);
  return true;
}

Bytes Coverage::first_gap(Bytes size) const {
  if (ends_.empty() || ends_.begin()->first != 0) return 0;
  return std::min(size, ends_.begin()->second);
}

}  // namespace spillway::state
