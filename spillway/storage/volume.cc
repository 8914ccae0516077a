#include "spillway/storage/volume.h"

#include <array>
#include <system_error>

#include "spillway/base/error.h"
#include "spillway/storage/superblock.h"
#include "spillway/sys/errno.h"

namespace spillway::storage {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kPieceSize = 1 * MiB;

/// Aligned for O_DIRECT.
struct alignas(kSuperblockBytes) Page : std::array<std::byte, kSuperblockBytes> {};

void require_directory(const fs::path& directory) {
  std::error_code failure;
  const fs::file_status status = fs::status(directory, failure);
  if (!fs::exists(status)) {
    throw Error(ErrorCode::bad_input,
                text("the storage directory ", directory.string(), " does not exist; create it or name another"),
                failure.value(), directory.string());
  }
  if (!fs::is_directory(status)) {
    throw Error(ErrorCode::bad_input, text("the storage path ", directory.string(), " is not a directory"), 0,
                directory.string());
  }
}

[[noreturn]] void refuse_busy(const fs::path& path) {
  throw Error(ErrorCode::bad_input,
              text(path.string(), " is in use by another run; end that run or name another storage directory"), 0,
              path.string());
}

std::string reason_of(SuperblockState state, const Superblock& superblock) {
  switch (state) {
    case SuperblockState::valid:
      return text("belongs to run '", superblock.run, "'");
    case SuperblockState::foreign:
      return "is not a Spillway volume";
    case SuperblockState::damaged:
      return "has a damaged superblock";
    case SuperblockState::alien:
      return "was written on a machine of the other byte order";
    case SuperblockState::newer:
      return "has a format this build does not know";
  }
  return "cannot be read";
}

SuperblockState examine(const sys::File& file, Superblock& superblock) {
  if (file.size() < kSuperblockBytes) return SuperblockState::foreign;
  Page page;
  file.read(page, 0);
  return decode(page, superblock);
}

void require_space(const VolumeOptions& options) {
  const Bytes free = sys::free_space(options.directory);
  const Bytes asked = options.capacity + kSuperblockExtent;
  if (asked <= free) return;
  throw Error(ErrorCode::does_not_fit,
              text("the volume in ", options.directory.string(), " needs ", human(asked), " (", asked,
                   " bytes); the file system has ", human(free), " (", free,
                   " bytes) free. Free space there, keep more in DRAM, or name another storage directory"),
              0, options.directory.string());
}

void write_superblock(const sys::File& file, const VolumeOptions& options) {
  Page page;
  encode({options.capacity, kPieceSize, options.run}, page);
  file.write(page, 0);
}

/// A file under a temporary name: removed again unless it is kept.
class Draft {
 public:
  explicit Draft(fs::path path)
      : path_(std::move(path)), file_(path_, {.write = true, .create = true, .direct = true}) {
    if (!file_.lock()) refuse_busy(path_);
    mine_ = true;
  }
  ~Draft() {
    std::error_code ignored;
    if (mine_) fs::remove(path_, ignored);
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  [[nodiscard]] const sys::File& file() const noexcept { return file_; }
  [[nodiscard]] sys::File keep_as(const fs::path& path) {
    fs::rename(path_, path);
    mine_ = false;
    return std::move(file_);
  }

 private:
  fs::path path_;
  sys::File file_;
  bool mine_ = false;
};

}  // namespace

Volume::Volume(const VolumeOptions& options) : path_(options.directory / kVolumeName), capacity_(options.capacity) {
  require_directory(options.directory);
  if (!reuse(options)) create(options);
}

Bytes Volume::in_file(Bytes offset) noexcept {
  return kSuperblockExtent + offset;
}

void Volume::remove() noexcept {
  std::error_code ignored;
  fs::remove(path_, ignored);
}

/// True when the volume that is there belongs to this run and is large enough: then it is ours as it is. False when
/// there is none or it may be replaced. Otherwise refuses.
bool Volume::reuse(const VolumeOptions& options) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(path_, ignored))) return false;
  if (!fs::is_regular_file(path_, ignored)) {
    throw Error(ErrorCode::bad_input, text(path_.string(), " is not a regular file; move it away"), 0, path_.string());
  }
  sys::File old(path_, {.write = true, .direct = true});
  if (!old.lock()) refuse_busy(path_);
  Superblock superblock;
  const SuperblockState state = examine(old, superblock);
  const bool ours = state == SuperblockState::valid && superblock.run == options.run;
  if (!ours && !options.overwrite) {
    throw Error(ErrorCode::bad_input,
                text(path_.string(), " ", reason_of(state, superblock),
                     ": remove it, name another storage directory, or ask to overwrite it"),
                0, path_.string());
  }
  const Bytes needed = options.capacity + kSuperblockExtent;
  if (!ours || superblock.piece_size != kPieceSize || old.size() < needed || old.reserved() < needed) return false;
  file_ = std::move(old);
  return true;
}

void Volume::create(const VolumeOptions& options) {
  require_space(options);
  Draft draft(options.directory / (std::string(kVolumeName) + ".new"));
  draft.file().reserve(options.capacity + kSuperblockExtent);
  write_superblock(draft.file(), options);
  draft.file().sync();
  file_ = draft.keep_as(path_);
  sys::sync_directory(options.directory);
}

}  // namespace spillway::storage
