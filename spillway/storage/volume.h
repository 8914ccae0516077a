// The file of a storage path: DIRECTORY/spillway.volume.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "spillway/base/bytes.h"
#include "spillway/storage/path.h"
#include "spillway/storage/superblock.h"
#include "spillway/sys/file.h"

namespace spillway::storage {

inline constexpr const char* kVolumeName = "spillway.volume";

/// As PathOptions'.
struct VolumeOptions {
  std::filesystem::path directory;
  Bytes capacity = 0;  ///< multiple of 1 MiB
  std::string run;
  bool overwrite = false;
  Bytes metadata = 0;  ///< multiple of 1 MiB
  std::uint64_t model = 0;
  std::uint32_t number = 0;
  std::uint32_t paths = 1;
  bool reopen = false;
  bool prewrite = false;
  std::function<void(Bytes done, Bytes of)> progress = {};
};

/// An open, locked volume with all its space reserved. Errors as promised by Path's constructor.
class Volume {
 public:
  explicit Volume(const VolumeOptions& options);

  [[nodiscard]] const sys::File& file() const noexcept { return file_; }
  /// What was asked for; of a reopened volume what is there.
  [[nodiscard]] Bytes capacity() const noexcept { return capacity_; }
  [[nodiscard]] Bytes metadata() const noexcept { return metadata_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// What a person should know: a damaged copy of the superblock; or empty.
  [[nodiscard]] const std::string& notice() const noexcept { return notice_; }
  /// Where an offset in an area lies in the file.
  [[nodiscard]] Bytes in_file(Area area, Bytes offset) const noexcept {
    return kSuperblockExtent + (area == Area::data ? metadata_ : 0) + offset;
  }
  /// Removes the file's name; the space goes when the object does.
  void remove() noexcept;

 private:
  void reopen(const VolumeOptions& options);
  bool reuse(const VolumeOptions& options);
  void create(const VolumeOptions& options);

  std::filesystem::path path_;
  Bytes capacity_;
  Bytes metadata_;
  std::string notice_;
  sys::File file_;
};

}  // namespace spillway::storage
