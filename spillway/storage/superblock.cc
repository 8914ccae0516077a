#include "spillway/storage/superblock.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "spillway/base/error.h"
#include "spillway/storage/checksum.h"

namespace spillway::storage {
namespace {

constexpr std::array<char, 8> kMagic = {'S', 'P', 'I', 'L', 'L', 'W', 'A', 'Y'};
constexpr std::uint32_t kEndianness = 0x01020304;
constexpr std::uint32_t kEndiannessSwapped = 0x04030201;
constexpr std::uint64_t kChecksumSeed = 0;
constexpr std::size_t kChecksumOffset = kSuperblockBytes - sizeof(std::uint64_t);

/// As it lies on the drive, in the byte order of the machine that wrote it.
struct Header {
  std::array<char, 8> magic;
  std::uint32_t endianness;
  std::uint32_t format;
  std::uint64_t capacity;
  std::uint64_t piece_size;
  std::uint32_t run_bytes;
  std::uint32_t reserved;  ///< 0
  std::array<char, kMostRunBytes> run;
};
static_assert(sizeof(Header) == 296 && sizeof(Header) <= kChecksumOffset);

}  // namespace

void encode(const Superblock& superblock, std::span<std::byte> out) {
  if (superblock.run.size() > kMostRunBytes) {
    throw Error(ErrorCode::bad_input,
                text("the run's identity has ", superblock.run.size(), " bytes; a volume holds ", kMostRunBytes));
  }
  Header header{kMagic, kEndianness, kVolumeFormat, superblock.capacity, superblock.piece_size, 0, 0, {}};
  header.run_bytes = static_cast<std::uint32_t>(superblock.run.size());
  std::copy(superblock.run.begin(), superblock.run.end(), header.run.begin());
  std::fill(out.begin(), out.end(), std::byte{0});
  std::memcpy(out.data(), &header, sizeof header);
  const std::uint64_t sum = checksum(out.first(kChecksumOffset), kChecksumSeed);
  std::memcpy(out.data() + kChecksumOffset, &sum, sizeof sum);
}

SuperblockState decode(std::span<const std::byte> in, Superblock& superblock) {
  Header header{};
  std::memcpy(&header, in.data(), sizeof header);
  if (header.magic != kMagic) return SuperblockState::foreign;
  if (header.endianness == kEndiannessSwapped) return SuperblockState::alien;
  std::uint64_t sum = 0;
  std::memcpy(&sum, in.data() + kChecksumOffset, sizeof sum);
  if (sum != checksum(in.first(kChecksumOffset), kChecksumSeed)) return SuperblockState::damaged;
  if (header.format != kVolumeFormat) return SuperblockState::newer;
  if (header.run_bytes > kMostRunBytes) return SuperblockState::damaged;
  superblock = {header.capacity, header.piece_size, std::string(header.run.data(), header.run_bytes)};
  return SuperblockState::valid;
}

}  // namespace spillway::storage
