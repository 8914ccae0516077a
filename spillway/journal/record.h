// The record of one object: which version lies where (docs/formats/journal.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/journal/journal_spec.h"
#include "spillway/journal/piece.h"

namespace spillway::journal {

/// What a slot of the metadata area holds.
enum class SlotState : std::uint8_t {
  whole,
  empty,    ///< zeros: never written
  foreign,  ///< whole, but of another run or layout
  damaged,  ///< torn by a cut, or corrupt
};

struct RecordHead {
  ObjectKind kind = ObjectKind::snapshot;
  std::uint32_t object = 0;      ///< chunk, or gradient
  std::uint32_t generation = 0;  ///< of the run that wrote it
  std::uint64_t version = 0;     ///< the step that a snapshot holds the result of, or a gradient belongs to
  std::uint32_t slot = kNoSlot;  ///< that it is written to; kNoSlot: it does not say so
};

/// The bytes of a record with so many pieces, not rounded.
[[nodiscard]] Bytes encoded_bytes(std::size_t pieces) noexcept;

/// Fills `out`, which holds encoded_bytes() and more; what is left is zero.
void encode(const RecordHead& head, std::span<const Piece> pieces, std::uint64_t identity, std::span<std::byte> out);

/// Reads a slot; `head` and `pieces` are set when the answer is whole.
[[nodiscard]] SlotState decode(std::span<const std::byte> in, std::uint64_t identity, RecordHead& head,
                               std::vector<Piece>& pieces);

}  // namespace spillway::journal
