#include "spillway/storage/superblock.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/storage/checksum.h"
#include "spillway/storage/unreadable.h"

namespace spillway::storage {
namespace {

constexpr std::array<char, 8> kMagic = {'S', 'P', 'I', 'L', 'L', 'W', 'A', 'Y'};
constexpr std::uint32_t kEndianness = 0x01020304;
constexpr std::uint32_t kEndiannessSwapped = 0x04030201;
constexpr std::uint64_t kChecksumSeed = 0;
/// The flag of a superblock that is not ready: only the first of its sectors was written, which holds all the rest.
constexpr std::uint64_t kNoChecksum = 0;
constexpr std::size_t kChecksumOffset = kSuperblockBytes - sizeof(std::uint64_t);
constexpr std::uint32_t kReady = 1;
constexpr std::uint32_t kPrewritten = 2;

/// The superblock as it lies on the drive, in the byte order of the machine that wrote it. Every format begins with
/// what stands here up to and with `run`, and ends with the checksum.
struct Header {
  std::array<char, 8> magic;
  std::uint32_t endianness;
  std::uint32_t format;
  std::uint64_t capacity;
  std::uint64_t piece_size;
  std::uint32_t run_bytes;
  std::uint32_t flags;  ///< kReady, kPrewritten
  std::array<char, kMostRunBytes> run;
  std::uint64_t metadata;
  std::uint64_t model;
  std::uint32_t number;
  std::uint32_t paths;
  std::uint64_t set;
  std::uint32_t shard;  ///< this and the next are zero in kVolumeFormat
  std::uint32_t world;
};
static_assert(sizeof(Header) == 336 && sizeof(Header) <= kChecksumOffset);
static_assert(sizeof(Header) <= 512, "lies in one sector, which is never torn");

/// Aligned for O_DIRECT.
struct alignas(kSuperblockBytes) Page : std::array<std::byte, kSuperblockBytes> {};

struct Copy {
  Superblock superblock;
  SuperblockState state = SuperblockState::foreign;
  std::string unreadable;  ///< why the drive cannot give it; empty: it can
};

/// Nothing says that a copy that cannot be read was none of ours.
Copy read_copy(const sys::File& file, Bytes offset, Bytes size) {
  Copy out;
  Page page{};
  if (size >= offset + kSuperblockBytes) out.unreadable = why_unreadable([&] { file.read(page, offset); });
  out.state = out.unreadable.empty() ? decode(page, out.superblock) : SuperblockState::damaged;
  return out;
}

/// Whether both are of the same volume, of which one may have grown.
bool is_same_volume(Superblock a, const Superblock& b) {
  a.capacity = b.capacity;
  a.prewritten = b.prewritten;
  return a == b;
}

/// Chooses between two valid copies that differ: the number of the one that counts.
std::size_t choose_copy(const std::array<Copy, 2>& copies, SuperblockPair& pair) {
  const Superblock &first = copies[0].superblock, &second = copies[1].superblock;
  const bool same = is_same_volume(first, second);
  if (first.ready && second.ready && !same) {
    pair.state = SuperblockState::damaged;
    pair.damage = text("has two superblocks of different makings (path ", first.number, " of run '", first.run,
                       "' at byte ", kSuperblockOffsets[0], ", path ", second.number, " of run '", second.run,
                       "' at byte ", kSuperblockOffsets[1], ")");
    return 0;
  }
  const bool takes_second =
      first.ready != second.ready ? second.ready : first.ready && second.capacity > first.capacity;
  pair.older = text("the copy of its superblock at byte ", kSuperblockOffsets[takes_second ? 0 : 1],
                    " is an older one, the other one was used");
  return takes_second ? 1 : 0;
}

}  // namespace

void encode(const Superblock& superblock, std::span<std::byte> out) {
  if (superblock.run.size() > kMostRunBytes) {
    throw Error(ErrorCode::bad_input,
                text("the run's identity has ", superblock.run.size(), " bytes; a volume holds ", kMostRunBytes));
  }
  Header header{kMagic, kEndianness, superblock.format, superblock.capacity, superblock.piece_size, 0, 0, {}};
  header.run_bytes = static_cast<std::uint32_t>(superblock.run.size());
  header.flags = (superblock.ready ? kReady : 0) | (superblock.prewritten ? kPrewritten : 0);
  std::copy(superblock.run.begin(), superblock.run.end(), header.run.begin());
  header.metadata = superblock.metadata;
  header.model = superblock.model;
  header.number = superblock.number;
  header.paths = superblock.paths;
  header.set = superblock.set;
  if (superblock.format == kShardFormat) {
    header.shard = superblock.shard;
    header.world = superblock.world;
  }
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
  const bool begun = sum == kNoChecksum && (header.flags & kReady) == 0;
  if (!begun && sum != checksum(in.first(kChecksumOffset), kChecksumSeed)) return SuperblockState::damaged;
  if (header.run_bytes > kMostRunBytes) return SuperblockState::damaged;
  superblock = {};
  superblock.format = header.format;
  superblock.capacity = header.capacity;
  superblock.run.assign(header.run.data(), header.run_bytes);
  if (header.format != kVolumeFormat && header.format != kShardFormat) return SuperblockState::other_format;
  superblock.piece_size = header.piece_size;
  superblock.metadata = header.metadata;
  superblock.model = header.model;
  superblock.number = header.number;
  superblock.paths = header.paths;
  superblock.set = header.set;
  if (header.format == kShardFormat) {
    superblock.shard = header.shard;
    superblock.world = header.world;
  }
  superblock.ready = (header.flags & kReady) != 0;
  superblock.prewritten = (header.flags & kPrewritten) != 0;
  return SuperblockState::valid;
}

SuperblockPair read_superblocks(const sys::File& file) {
  SuperblockPair pair;
  const Bytes size = file.size();
  std::array<Copy, 2> copies{read_copy(file, kSuperblockOffsets[0], size),
                             read_copy(file, kSuperblockOffsets[1], size)};
  std::size_t chosen = copies[0].state >= copies[1].state ? 0 : 1;
  pair.state = copies[chosen].state;
  const Copy& other = copies[1 - chosen];
  if (pair.state == SuperblockState::valid && other.state != SuperblockState::valid) {
    pair.damaged = kSuperblockOffsets[1 - chosen];
    pair.damage = text("the copy of its superblock at byte ", pair.damaged,
                       other.unreadable.empty() ? " is damaged" : text(" cannot be read (", other.unreadable, ")"),
                       ", the other one was used");
  } else if (pair.state == SuperblockState::valid && copies[0].superblock != copies[1].superblock) {
    chosen = choose_copy(copies, pair);
  }
  pair.superblock = std::move(copies[chosen].superblock);
  return pair;
}

void write_superblocks(const sys::File& file, const Superblock& superblock) {
  Page page;
  encode(superblock, page);
  for (std::size_t copy = kSuperblockOffsets.size(); copy-- > 0;) {
    file.write(page, kSuperblockOffsets[copy]);
    file.sync();
  }
}

void write_first_superblocks(const sys::File& file, const Superblock& superblock) {
  Page page;
  encode(superblock, page);
  std::fill(page.begin() + kChecksumOffset, page.end(), std::byte{0});
  file.write(page, kSuperblockOffsets.back());
  file.sync();
  write_superblocks(file, superblock);
}

Superblock given_back(Superblock of) {
  of.ready = false;
  of.run.clear();
  of.model = 0;
  of.number = 0;
  of.paths = 1;
  of.set = 0;
  of.shard = 0;
  of.world = 1;
  of.format = kVolumeFormat;
  return of;
}

bool is_nobodys(const Superblock& superblock) noexcept {
  return !superblock.ready && superblock.run.empty();
}

}  // namespace spillway::storage
