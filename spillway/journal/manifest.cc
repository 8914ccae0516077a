#include "spillway/journal/manifest.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "spillway/base/error.h"
#include "spillway/storage/checksum.h"
#include "spillway/sys/file.h"

namespace spillway::journal {
namespace {

constexpr std::array<char, 8> kManifestMagic = {'S', 'P', 'W', 'M', 'N', 'F', 'S', 'T'};
constexpr std::size_t kManifestChecked = 16;  ///< magic and checksum are not under the checksum

struct ManifestHeader {
  std::array<char, 8> magic;
  std::uint64_t checksum;  ///< of all bytes from kManifestChecked on
  std::uint64_t identity;
  std::uint32_t commit;     ///< bytes of the commit that follows
  std::uint32_t snapshots;  ///< records that follow it
};
static_assert(sizeof(ManifestHeader) == 32);

std::uint64_t checksum_of_manifest(std::span<const std::byte> manifest) {
  return storage::checksum(manifest.subspan(kManifestChecked), 0);
}

[[noreturn]] void corrupt() {
  throw Error(ErrorCode::corrupt,
              "the manifest of a checkpoint is not whole: its bytes are not those that were written");
}

/// Takes the record of a chunk from the front of what is left.
StoredObject take(std::span<const std::byte>& rest, std::uint64_t identity, std::uint32_t chunk) {
  RecordHead head;
  StoredObject out;
  if (decode(rest, identity, head, out.pieces) != SlotState::whole || head.object != chunk) corrupt();
  out.object = chunk;
  out.version = head.version;
  rest = rest.subspan(encoded_bytes(out.pieces.size()));
  return out;
}

}  // namespace

std::vector<std::byte> encode(const Manifest& manifest) {
  ManifestHeader header{kManifestMagic, 0, manifest.identity, 0, static_cast<std::uint32_t>(manifest.snapshots.size())};
  header.commit = static_cast<std::uint32_t>(encoded_bytes(manifest.commit));
  std::size_t bytes = sizeof header + header.commit;
  for (const StoredObject& snapshot : manifest.snapshots) bytes += encoded_bytes(snapshot.pieces.size());
  std::vector<std::byte> out(bytes);
  std::memcpy(out.data(), &header, sizeof header);
  encode(manifest.commit, manifest.identity, std::span(out).subspan(sizeof header, header.commit));
  std::size_t at = sizeof header + header.commit;
  for (const StoredObject& snapshot : manifest.snapshots) {
    const std::size_t length = encoded_bytes(snapshot.pieces.size());
    const RecordHead head{ObjectKind::snapshot, snapshot.object, manifest.commit.generation, snapshot.version};
    encode(head, snapshot.pieces, manifest.identity, std::span(out).subspan(at, length));
    at += length;
  }
  header.checksum = checksum_of_manifest(out);
  std::memcpy(out.data(), &header, sizeof header);
  return out;
}

std::vector<std::byte> read_manifest_file(const std::filesystem::path& file) {
  try {
    const sys::File in(file);
    std::vector<std::byte> bytes(in.size());
    in.read(bytes, 0);
    return bytes;
  } catch (const Error& error) {
    throw Error(error.code(),
                text(error.what(), "; it says where on the storage paths the state of this checkpoint lies"),
                error.errno_value(), file.string());
  }
}

Manifest decode_manifest(std::span<const std::byte> bytes, std::uint64_t identity) {
  ManifestHeader header{};
  if (bytes.size() < sizeof header) corrupt();
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kManifestMagic || header.checksum != checksum_of_manifest(bytes)) corrupt();
  if (header.identity != identity) {
    throw Error(ErrorCode::bad_input,
                "the manifest of a checkpoint is of another run, model or set of paths; resume it with those it was "
                "made with, or export it where they are");
  }
  Manifest out;
  out.identity = identity;
  std::span<const std::byte> rest = bytes.subspan(sizeof header);
  if (header.commit > rest.size()) corrupt();
  if (decode(rest.first(header.commit), identity, out.commit) != SlotState::whole) corrupt();
  rest = rest.subspan(header.commit);
  for (std::uint32_t chunk = 0; chunk < header.snapshots; ++chunk) out.snapshots.push_back(take(rest, identity, chunk));
  return out;
}

std::vector<storage::Place> places_of(std::span<const Manifest> manifests) {
  std::vector<storage::Place> out;
  for (const auto& manifest : manifests) {
    for (const auto& snapshot : manifest.snapshots) {
      for (const auto& piece : snapshot.pieces) out.push_back(piece.place);
    }
  }
  std::ranges::sort(out);
  out.erase(std::ranges::unique(out).begin(), out.end());
  return out;
}

}  // namespace spillway::journal
