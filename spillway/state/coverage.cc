#include "spillway/state/coverage.h"

#include <algorithm>
#include <iterator>

namespace spillway::state {

bool Coverage::add(Bytes begin, Bytes end) {
  if (begin == end) return true;
  if (begin < prefix_) return false;
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
  if (begin == prefix_) {
    prefix_ = end;
  } else {
    ends_.emplace(begin, end);
  }
  return true;
}

Bytes Coverage::first_gap(Bytes size) const {
  return std::min(size, prefix_);
}

}  // namespace spillway::state
