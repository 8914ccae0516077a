// Digests of a safetensors file: its header's, and each tensor's, piece by piece.
//
// The writer makes them of the bytes that it is given and leaves them beside the file, in a sheet. Whoever completes a
// directory moves the sheets into one list, spillway/files.json. The reader takes either, and verifies a piece before
// it gives a byte of it away. Both are described in docs/formats/checkpoint.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/storage/checksum.h"

namespace spillway::state {

/// Bytes of a tensor that have one digest. The last piece of a tensor may be shorter.
inline constexpr Bytes kDigestPiece = MiB;

/// XXH3-64 each.
struct FileDigests {
  Bytes bytes = 0;           ///< of the file
  std::uint64_t header = 0;  ///< of the header's length and JSON: the bytes before the data
  std::map<std::string, std::vector<std::uint64_t>> tensors = {};

  bool operator==(const FileDigests&) const = default;
};

[[nodiscard]] constexpr std::size_t digest_pieces(Bytes bytes) noexcept {
  return static_cast<std::size_t>(ceil_div(bytes, kDigestPiece));
}

/// The digests of one tensor, from bytes as they come. A piece whose bytes rise without a gap is read once only, by the
/// caller; any other is read again at the end.
class PieceDigests {
 public:
  explicit PieceDigests(Bytes size) : size_(size), digests_(digest_pieces(size)) {}
  /// `bytes` begin at byte `at` of the tensor.
  void add(Bytes at, std::span<const std::byte> bytes);
  /// `read` gives bytes of the tensor from a place on.
  [[nodiscard]] std::vector<std::uint64_t> finish(
      const std::function<void(Bytes at, std::span<std::byte> out)>& read) const;

 private:
  void add_to_piece(std::size_t piece, Bytes at, std::span<const std::byte> bytes);

  Bytes size_ = 0;
  std::vector<std::optional<std::uint64_t>> digests_;
  std::unique_ptr<storage::RunningChecksum> running_;  ///< of a piece that has come in part
  Bytes next_ = 0;                                     ///< where the bytes of `running_` end
};

/// JSON of one file: {"bytes", "header", "piece", "tensors": {name: the digests as hexadecimal digits, 16 each}}.
[[nodiscard]] std::string to_json(const FileDigests& digests);
/// Throws Error(bad_input) that names `file` where the text is not what to_json() makes. Empty where pieces have
/// another length: a later release's.
[[nodiscard]] std::optional<FileDigests> parse_digests(std::string_view json, const std::filesystem::path& file);

/// Where the writer leaves the digests of a file: ".NAME.digests" beside it.
[[nodiscard]] std::filesystem::path sheet_of(const std::filesystem::path& file);

/// The digests of a file: of its sheet, or of the list of a directory that holds it (its own, or one or two above).
/// Empty where neither names it. Throws Error(bad_input) for a sheet or a list that cannot be read.
[[nodiscard]] std::optional<FileDigests> find_digests(const std::filesystem::path& file);

/// The digests of a file as it is. Reads all of it.
[[nodiscard]] FileDigests digests_of(const std::filesystem::path& file);

/// Bytes of a file that are not those that were digested.
struct DamagedRange {
  std::string tensor;  ///< empty: the header, or the file's length
  Bytes begin = 0, end = 0;
};

/// Compares a file with its digests: length, header, and at most `most_pieces` pieces that lie evenly in it. Neighbours
/// in a tensor are one range. Throws Error(io) where the file cannot be read.
[[nodiscard]] std::vector<DamagedRange> find_damage(const std::filesystem::path& file, const FileDigests& digests,
                                                    std::size_t most_pieces = ~std::size_t{0});

/// "model.safetensors: tensor w, bytes 1024 to 2048, ..." and what to do about it.
[[noreturn]] void refuse_damaged(const std::filesystem::path& file, const DamagedRange& range);

}  // namespace spillway::state
