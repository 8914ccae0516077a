#include "spillway/storage/share_layout.h"

#include <atomic>
#include <cstring>
#include <span>

#include "spillway/base/error.h"
#include "spillway/storage/checksum.h"

namespace spillway::storage {
namespace {

constexpr std::array<char, 8> kShareMagic{'S', 'P', 'I', 'L', 'S', 'H', 'A', 'R'};
constexpr std::uint32_t kShareEndianness = 0x01020304;
constexpr Bytes kTableBytes = sizeof(ShareTable);

static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(ShareSlot) == 128 && offsetof(ShareTable, slots) == 256 && kTableBytes == 256 + 128 * kShareSlots);

std::uint64_t checksum_of(const ShareHeader& header) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  return checksum({bytes, offsetof(ShareHeader, checksum)}, 0);
}

/// Why a table cannot be used; empty when it can.
std::string fault_of(const ShareHeader& header) {
  if (header.magic != kShareMagic) return "is not a table of device shares";
  if (header.endianness != kShareEndianness) return "was written in the other byte order";
  if (header.checksum != checksum_of(header)) return "has a damaged header";
  if (header.format != kShareFormat) return text("has format ", header.format, ", this build knows ", kShareFormat);
  if (header.bytes != kTableBytes) return text("says that it is ", header.bytes, " bytes long");
  return {};
}

ShareTable& table_in(const sys::SharedMemory& memory) {
  return *reinterpret_cast<ShareTable*>(memory.span().data());
}

void begin_table(ShareTable& table, const std::array<std::uint64_t, 2>& budgets) {
  ShareHeader header;
  std::memset(static_cast<void*>(&header), 0, sizeof header);
  header.magic = kShareMagic;
  header.endianness = kShareEndianness;
  header.format = kShareFormat;
  header.bytes = kTableBytes;
  header.budgets = budgets;
  header.checksum = checksum_of(header);
  std::memcpy(static_cast<void*>(&table.header), &header, sizeof header);
}

[[noreturn]] void refuse(const sys::SharedMemory& memory, const std::string& fault) {
  throw Error(ErrorCode::unsupported,
              text(memory.path().string(), " ", fault,
                   ", and processes use it to share their device; end them, or run the same version of Spillway"),
              0, memory.path().string());
}

}  // namespace

ShareTable& map_share_table(sys::SharedMemory& memory, const std::array<std::uint64_t, 2>& budgets) {
  if (!memory.locked_elsewhere(kShareSlotLocks, kShareSlots)) {
    memory.reset(kTableBytes);
    memory.map(kTableBytes);
    begin_table(table_in(memory), budgets);
    return table_in(memory);
  }
  if (memory.size() != kTableBytes) refuse(memory, text("is ", memory.size(), " bytes long"));
  memory.map(kTableBytes);
  const std::string fault = fault_of(table_in(memory).header);
  if (!fault.empty()) refuse(memory, fault);
  return table_in(memory);
}

}  // namespace spillway::storage
