// Safetensors in and out, as a stream: a file or a sharded checkpoint is never whole in memory.
//
// Format: 8 bytes little-endian header length, JSON header {name: {dtype, shape, data_offsets}}, data. A header that
// lies (length, offsets, overlaps, holes, shape times dtype unequal to the bytes) is refused by name before any use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/state/file.h"

namespace spillway::state {

struct StoredTensor {
  std::string name;
  std::string dtype;  ///< as in the header: "BF16", "F16", "F32", ...
  std::vector<std::int64_t> shape;
  std::uint64_t elements = 0;
  Bytes element_bytes = 0;
  std::size_t file = 0;  ///< index into SafetensorsReader::files()
  Bytes offset = 0;      ///< of its first byte in that file
};

/// Opens `model.safetensors`, or the shards named by `model.safetensors.index.json`, of a directory; or one file. The
/// weights of a directory whose config.json says that they are quantised are read as what they stand for (coding.h).
class SafetensorsReader {
 public:
  /// Throws Error(bad_input) with the file and the tensor: nothing found, an index that names a missing shard or
  /// tensor, a truncated file, a header that lies, a tensor that is in two shards.
  explicit SafetensorsReader(const std::filesystem::path& directory_or_file);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;

  [[nodiscard]] const std::map<std::string, StoredTensor>& tensors() const noexcept { return tensors_; }
  [[nodiscard]] const std::vector<std::filesystem::path>& files() const noexcept { return files_; }
  /// nullptr when there is none.
  [[nodiscard]] const StoredTensor* find(const std::string& name) const;

  /// Whether the files hold codes in place of the tensor.
  [[nodiscard]] bool is_decoded(const StoredTensor& tensor) const;

  /// Raw elements [first, first + count) of a tensor into `out` (count * element_bytes bytes). The pages read are
  /// dropped from the page cache. Throws Error(io) with the file; Error(internal) out of range.
  void read(const StoredTensor& tensor, std::uint64_t first, std::uint64_t count, std::byte* out) const;
  /// Reads elements converted to fp32 exactly (BF16, F16, F32; F64 rounded). Other types: Error(bad_input) naming the
  /// tensor.
  void read_fp32(const StoredTensor& tensor, std::uint64_t first, std::uint64_t count, float* out) const;

 private:
  void decode_weights(const std::filesystem::path& place);

  struct Files;
  std::map<std::string, StoredTensor> tensors_;
  std::vector<std::filesystem::path> files_;
  std::unique_ptr<Files> open_;
};

struct TensorOut {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

/// Writes `BASE.safetensors`, or `BASE-00001-of-0000N.safetensors` and `BASE.safetensors.index.json`, byte for byte as
/// transformers' save_pretrained does: tensors go to shards in the order given, a shard is closed before it would
/// exceed `max_shard`; within a file they lie by falling width of type, then by name; metadata {"format": "pt"}; the
/// index has metadata.total_size, metadata.total_parameters and weight_map.
///
/// Bytes may arrive in any order, from one thread. Files have the suffix `.partial` until finish(); an older checkpoint
/// of the same base stays intact until then and is replaced, all its shards, by finish(): an index last, and the older
/// one's goes first, so that no reader takes shards of both for one.
class SafetensorsWriter {
 public:
  /// Creates the files, with these permissions less the umask, and reserves their space. Throws Error(bad_input) for a
  /// directory that is missing, no tensors, a name that is empty, repeated or not UTF-8, an unknown dtype, or a shape
  /// that cannot be; Error(io) with file and errno (disk full ...). Then nothing is left behind.
  SafetensorsWriter(const std::filesystem::path& directory, const std::string& base, std::vector<TensorOut> tensors,
                    Bytes max_shard = 50'000'000'000, unsigned mode = kPublic);
  ~SafetensorsWriter();  ///< without finish(): closes and removes what was written
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// `bytes` (whole elements) at element `first` of tensor number `tensor` (index into the list given). Throws
  /// Error(io) with file and errno, after which only destruction is left; Error(internal) out of range or for bytes
  /// that are there already.
  void write(std::size_t tensor, std::uint64_t first, std::span<const std::byte> bytes);
  /// Checks that every byte was written exactly once (Error(internal) naming the tensor), writes the index, flushes
  /// (fsync of files and directory), closes, and gives the files their names.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::state
