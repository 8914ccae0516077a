// Which part of a range has arrived.
#pragma once

#include <map>

#include "spillway/base/bytes.h"

namespace spillway::state {

/// Disjoint half-open intervals; neighbours are joined, so bytes that arrive in order cost one entry.
class Coverage {
 public:
  /// Adds [begin, end); an empty interval adds nothing. False, and nothing is added, when a part of it is there.
  [[nodiscard]] bool add(Bytes begin, Bytes end);
  /// The first byte of [0, size) that has not arrived; `size` when all have.
  [[nodiscard]] Bytes first_gap(Bytes size) const;

 private:
  std::map<Bytes, Bytes> ends_;  ///< begin of an interval to its end
};

}  // namespace spillway::state
