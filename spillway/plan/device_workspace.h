// Memory of a device for arithmetic beside the schedule's buffers: the sums of squares of every gradient and the
// auxiliary fields of reduced gradients. A table that is also the head adds the rows of the step's tokens. The plan
// counts all of it.
#pragma once

#include "spillway/base/bytes.h"
#include "spillway/state/layout.h"

namespace spillway::plan {

struct Description;

/// Elements whose squares are summed together (kernels::kNormTile).
inline constexpr std::uint64_t kSquaresTile = 65536;

/// Numbers of elements; they lie one after the other, each at a multiple of 256 bytes.
struct DeviceWorkspace {
  std::uint64_t squares = 0;    ///< double
  std::uint64_t parts = 0;      ///< two uint64 each: runs of a tied table's rows that the step's tokens do not name
  std::uint64_t rows = 0;       ///< int64: the rows that they name
  std::uint64_t gathered = 0;   ///< float: of these rows, one slice's gradient
  std::uint64_t auxiliary = 0;  ///< float: of every tensor, what optim::Reduced::refitted_bytes() says

  // The following are for matrices that are reduced:
  std::uint64_t seen = 0;          ///< float: sums of a block's matrices, a number for each row, as often as there are
  std::uint64_t seen_squares = 0;  ///< double: of these, by tile
  std::uint64_t records = 0;       ///< double: the records beside each S

  [[nodiscard]] Bytes parts_at() const noexcept { return round_up(squares * 8, 256); }
  [[nodiscard]] Bytes rows_at() const noexcept { return parts_at() + round_up(parts * 16, 256); }
  [[nodiscard]] Bytes gathered_at() const noexcept { return rows_at() + round_up(rows * 8, 256); }
  [[nodiscard]] Bytes auxiliary_at() const noexcept { return gathered_at() + round_up(gathered * 4, 256); }
  [[nodiscard]] Bytes seen_at() const noexcept { return auxiliary_at() + round_up(auxiliary * 4, 256); }
  [[nodiscard]] Bytes seen_squares_at() const noexcept { return seen_at() + round_up(seen * 4, 256); }
  [[nodiscard]] Bytes records_at() const noexcept { return seen_squares_at() + round_up(seen_squares * 8, 256); }
  [[nodiscard]] Bytes bytes() const noexcept { return records_at() + round_up(records * 8, 256); }
};

/// For steps of at most `tokens` tokens. `by_chunk`: the parts of a tensor that lie in different chunks have tiles of
/// their own. `sums`: sums of virtual ranks at once.
[[nodiscard]] DeviceWorkspace device_workspace(const state::Layout& layout, bool tied_head, std::uint64_t tokens,
                                               bool by_chunk = false, unsigned sums = 1);
/// Workspace for the steps of a description.
[[nodiscard]] DeviceWorkspace device_workspace(const Description& description, const state::Layout& layout);

}  // namespace spillway::plan
