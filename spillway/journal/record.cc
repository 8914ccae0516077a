#include "spillway/journal/record.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "spillway/base/blank.h"
#include "spillway/storage/checksum.h"

namespace spillway::journal {
namespace {

constexpr std::array<char, 8> kRecordMagic = {'S', 'P', 'W', 'R', 'E', 'C', 'R', 'D'};
/// The checksum covers the bytes from here on; magic and checksum come before.
constexpr std::size_t kRecordChecked = 16;

struct RecordHeader {
  std::array<char, 8> magic;
  std::uint64_t checksum;  ///< of the bytes from kRecordChecked on, `bytes` in all
  std::uint64_t identity;
  std::uint32_t bytes;  ///< of the whole record, header included
  std::uint32_t kind;
  std::uint32_t object;
  std::uint32_t generation;
  std::uint64_t version;
  std::uint32_t parts;
  std::uint32_t pieces;
};
static_assert(sizeof(RecordHeader) == 56);

std::uint64_t sum(std::span<const std::byte> record) {
  return storage::checksum(record.subspan(kRecordChecked), 0);
}

std::uint32_t parts_of(std::span<const Piece> pieces) {
  std::uint32_t parts = 0;
  for (const Piece& piece : pieces) parts = std::max(parts, piece.part + 1);
  return parts;
}

/// The slot, counted from 1, stands in the upper half of the parts, which no build reads.
constexpr std::uint32_t kRecordSlotShift = 16;
static_assert(kMostPeriod + 1 < 1U << kRecordSlotShift);

}  // namespace

Bytes encoded_bytes(std::size_t pieces) noexcept {
  return sizeof(RecordHeader) + pieces * sizeof(Piece);
}

void encode(const RecordHead& head, std::span<const Piece> pieces, std::uint64_t identity, std::span<std::byte> out) {
  RecordHeader header{kRecordMagic, 0, identity, 0, 0, head.object, head.generation, head.version, parts_of(pieces), 0};
  header.bytes = static_cast<std::uint32_t>(encoded_bytes(pieces.size()));
  header.kind = static_cast<std::uint32_t>(head.kind);
  header.pieces = static_cast<std::uint32_t>(pieces.size());
  if (head.slot != kNoSlot) header.parts |= (head.slot + 1) << kRecordSlotShift;
  std::fill(out.begin(), out.end(), std::byte{0});
  std::memcpy(out.data(), &header, sizeof header);
  if (!pieces.empty()) std::memcpy(out.data() + sizeof header, pieces.data(), pieces.size_bytes());
  header.checksum = sum(out.first(header.bytes));
  std::memcpy(out.data(), &header, sizeof header);
}

SlotState decode(std::span<const std::byte> in, std::uint64_t identity, RecordHead& head, std::vector<Piece>& pieces) {
  RecordHeader header{};
  if (in.size() < sizeof header) return SlotState::damaged;
  std::memcpy(&header, in.data(), sizeof header);
  if (header.magic != kRecordMagic) return blank(in) ? SlotState::empty : SlotState::damaged;
  if (header.bytes > in.size() || header.bytes != encoded_bytes(header.pieces)) return SlotState::damaged;
  if (header.checksum != sum(in.first(header.bytes))) return SlotState::damaged;
  if (header.identity != identity) return SlotState::foreign;
  const std::uint32_t slot = (header.parts >> kRecordSlotShift) - 1;  // kNoSlot of 0
  head = {static_cast<ObjectKind>(header.kind), header.object, header.generation, header.version, slot};
  pieces.resize(header.pieces);
  if (!pieces.empty()) std::memcpy(pieces.data(), in.data() + sizeof header, pieces.size() * sizeof(Piece));
  return SlotState::whole;
}

}  // namespace spillway::journal
