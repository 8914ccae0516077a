// The file of a storage path: DIRECTORY/spillway.volume.
#pragma once

#include <filesystem>
#include <string>

#include "spillway/base/bytes.h"
#include "spillway/sys/file.h"

namespace spillway::storage {

inline constexpr const char* kVolumeName = "spillway.volume";

struct VolumeOptions {
  std::filesystem::path directory;
  Bytes capacity = 0;  ///< multiple of 1 MiB
  std::string run;
  bool overwrite = false;
};

/// An open, locked volume with all its space reserved. Errors as promised by Path's constructor.
class Volume {
 public:
  explicit Volume(const VolumeOptions& options);

  [[nodiscard]] const sys::File& file() const noexcept { return file_; }
  [[nodiscard]] Bytes capacity() const noexcept { return capacity_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Where an offset in extent space lies in the file.
  [[nodiscard]] static Bytes in_file(Bytes offset) noexcept;
  /// Removes the file's name; the space goes when the object does.
  void remove() noexcept;

 private:
  bool reuse(const VolumeOptions& options);
  void create(const VolumeOptions& options);

  std::filesystem::path path_;
  Bytes capacity_;
  sys::File file_;
};

}  // namespace spillway::storage
