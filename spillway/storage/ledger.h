// What was written where: length and checksum of every piece of a volume.
#pragma once

#include <cstdint>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/storage/path.h"

namespace spillway::storage {

/// One mark per piece, allocated once. The path's thread uses it; others do only for pieces that it does not write.
class Ledger {
 public:
  /// `piece_size` divides `capacity`.
  Ledger(Bytes capacity, Bytes piece_size);

  /// The piece at an offset (a multiple of the piece size, below the capacity).
  [[nodiscard]] const PieceMark& at(Bytes offset) const noexcept { return marks_[index(offset)]; }
  void record(Bytes offset, const PieceMark& mark) noexcept { marks_[index(offset)] = mark; }
  /// Nothing can be said of the piece: it is being written, or that failed.
  void forget(Bytes offset) noexcept { marks_[index(offset)] = {}; }

 private:
  [[nodiscard]] std::size_t index(Bytes offset) const noexcept { return offset / piece_size_; }

  Bytes piece_size_;
  std::vector<PieceMark> marks_;
};

}  // namespace spillway::storage
