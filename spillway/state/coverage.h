// Which part of a range has arrived.
#pragma once

#include <map>

#include "spillway/base/bytes.h"

namespace spillway::state {

/// Disjoint half-open intervals; neighbours are joined. Bytes that arrive in order cost no memory: an allocation that
/// outlives the caller's buffer would keep the heap from using the buffer's place again.
class Coverage {
 public:
  /// Adds [begin, end); an empty interval adds nothing. False, and nothing is added, when a part of it is there.
  [[nodiscard]] bool add(Bytes begin, Bytes end);
  /// The first byte of [0, size) that has not arrived; `size` when all have.
  [[nodiscard]] Bytes first_gap(Bytes size) const;

 private:
  Bytes prefix_ = 0;             ///< [0, prefix_) has arrived
  std::map<Bytes, Bytes> ends_;  ///< begin of a later interval to its end
};

}  // namespace spillway::state
