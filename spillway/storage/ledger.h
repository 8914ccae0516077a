// What was written where: length and checksum of every piece of a volume.
#pragma once

#include <cstdint>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::storage {

/// One record per piece, allocated once. Used by the path's thread alone.
class Ledger {
 public:
  /// `piece_size` divides `capacity`.
  Ledger(Bytes capacity, Bytes piece_size);

  struct Record {
    std::uint64_t checksum = 0;  ///< 0 when checksums are off
    std::uint32_t bytes = 0;     ///< of the piece that was written; 0: nothing is there
  };

  /// The piece at an offset (a multiple of the piece size, below the capacity).
  [[nodiscard]] const Record& at(Bytes offset) const noexcept { return records_[index(offset)]; }
  void record(Bytes offset, const Record& record) noexcept { records_[index(offset)] = record; }
  /// Nothing can be said of the piece: it is being written, or that failed.
  void forget(Bytes offset) noexcept { records_[index(offset)] = {}; }

 private:
  [[nodiscard]] std::size_t index(Bytes offset) const noexcept { return offset / piece_size_; }

  Bytes piece_size_;
  std::vector<Record> records_;
};

}  // namespace spillway::storage
