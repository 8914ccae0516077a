// What a storage path lies on: the file DIRECTORY/spillway.volume, that of a shard, or a block device.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/storage/path.h"
#include "spillway/storage/probe.h"
#include "spillway/storage/superblock.h"
#include "spillway/sys/file.h"
#include "spillway/sys/name_watch.h"

namespace spillway::storage {

inline constexpr const char* kVolumeName = "spillway.volume";
/// The name of a volume in its directory: kVolumeName in a world of one, else "spillway.shard-3-of-4.volume". Worlds of
/// different sizes have different names, so that one can take over what another has left beside it.
[[nodiscard]] std::string volume_name(std::uint32_t shard, std::uint32_t world);

/// Whether a name is taken, a link by itself. Throws Error(io) where the file system cannot say: a server that is away
/// is no reason to take a volume for missing.
[[nodiscard]] bool is_taken(const std::filesystem::path& path);

/// These have the meaning that they have in PathOptions.
struct VolumeOptions {
  std::filesystem::path directory;
  Bytes capacity = 0;  ///< multiple of 1 MiB; of a device the least
  std::string run;
  bool overwrite = false;
  Bytes metadata = 0;  ///< multiple of 1 MiB
  std::uint64_t model = 0;
  std::uint32_t number = 0;
  std::uint32_t paths = 1;
  std::uint64_t set = 0;
  std::uint32_t shard = 0;
  std::uint32_t world = 1;
  bool reopen = false;
  bool keep_records = false;
  std::vector<std::filesystem::path> beside = {};
  bool prewrite = false;
  std::function<void(Bytes done, Bytes of)> progress = {};
  std::filesystem::path device = {};
  bool erase = false;
};

/// An open volume with all its space reserved, that no other process has. Its constructor throws what Path's does.
class Volume {
 public:
  explicit Volume(const VolumeOptions& options);

  [[nodiscard]] const sys::File& file() const noexcept { return file_; }
  /// What was asked for, or, of a reopened volume and of a device, what is there.
  [[nodiscard]] Bytes capacity() const noexcept { return capacity_; }
  [[nodiscard]] Bytes metadata() const noexcept { return metadata_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// What a person should know: a damaged copy of the superblock; or empty.
  [[nodiscard]] const std::string& notice() const noexcept { return notice_; }
  /// Whether the file of a directory lost its name, as far as is known: a server that does not answer within a second
  /// is asked on, by a thread of its own, and holds up nobody.
  [[nodiscard]] bool is_displaced() const { return name_ && name_->is_lost(std::chrono::seconds(1)); }
  /// What the directory or device can do.
  [[nodiscard]] const Probe& probe() const noexcept { return probe_; }
  /// Where an offset in an area lies in the file.
  [[nodiscard]] Bytes in_file(Area area, Bytes offset) const noexcept {
    return kSuperblockExtent + (area == Area::data ? metadata_ : 0) + offset;
  }
  /// Removes the file's name, unless that is another file's by now; the space goes when the object does. A device says
  /// from then on that it holds nothing and is nobody's.
  void remove() noexcept;

 private:
  void open_in_directory(const VolumeOptions& options);
  void open_on_device(const VolumeOptions& options);
  [[nodiscard]] std::optional<sys::File> open_existing();
  [[nodiscard]] bool make_anew(const VolumeOptions& options);
  [[nodiscard]] bool reuse(const sys::File& old, const VolumeOptions& options);
  [[nodiscard]] bool create(const VolumeOptions& options, bool replaces);
  void reopen(sys::File file, const VolumeOptions& options);
  void grow(const sys::File& file, const Superblock& there, const VolumeOptions& options);
  void take(sys::File device, const VolumeOptions& options);

  std::filesystem::path path_;
  Bytes capacity_;
  Bytes metadata_;
  std::string notice_;
  Probe probe_;
  /// Keeps others out of a device until we close it. `file_` is another, for the kernel may hold the one that a ring
  /// has a moment longer; its lock outlives us by what is in flight when we are killed.
  sys::File claim_;
  sys::File file_;
  std::optional<sys::NameWatch> name_;  ///< of the file of a directory
};

/// What a run has on a block device is nobody's from now on, as when the run gives it back; nothing of any other run is
/// touched. Throws Error(bad_input) while anybody has the device.
void give_back(const std::filesystem::path& device, const std::string& run);

}  // namespace spillway::storage
