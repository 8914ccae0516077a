// What a large file holds of which most was never written.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/sys/file.h"

namespace spillway::sys {

/// Bytes from 0 to size(); zero where nothing was written. Copies cost what was written, not the size.
class SparseBytes {
 public:
  SparseBytes() = default;
  /// What `file` holds; its holes, as far as the file system knows them, are not read.
  explicit SparseBytes(const File& file);

  [[nodiscard]] Bytes size() const noexcept { return size_; }
  /// Grows where `bytes` end behind size().
  void write(std::span<const std::byte> bytes, Bytes offset);
  [[nodiscard]] std::vector<std::byte> whole() const;
  /// Writes a new file, with holes where nothing was written; of an existing one what it holds goes.
  void save(const std::filesystem::path& path) const;

 private:
  Bytes size_ = 0;
  std::map<Bytes, std::vector<std::byte>> parts_;  ///< of kPart bytes each, by their offset
};

}  // namespace spillway::sys
