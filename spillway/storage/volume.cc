#include "spillway/storage/volume.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/storage/refusal.h"
#include "spillway/storage/zeros.h"

namespace spillway::storage {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kPieceSize = kExtentAlignment;

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

[[noreturn]] void refuse(const fs::path& path, const std::string& reason, const std::string& advice) {
  throw Error(ErrorCode::bad_input, text(path.string(), " ", reason, ": ", advice), 0, path.string());
}

Bytes file_bytes(const VolumeOptions& options) {
  return kSuperblockExtent + options.metadata + options.capacity;
}

void require_space(const VolumeOptions& options) {
  const Bytes free = sys::free_space(options.directory);
  const Bytes asked = file_bytes(options);
  if (asked <= free) return;
  throw Error(ErrorCode::does_not_fit,
              text("the volume in ", options.directory.string(), " needs ", human(asked), " (", asked,
                   " bytes); the file system has ", human(free), " (", free,
                   " bytes) free. Free space there, keep more in DRAM, or name another storage directory"),
              0, options.directory.string());
}

Superblock wanted(const VolumeOptions& options) {
  Superblock out;
  out.capacity = options.capacity;
  out.metadata = options.metadata;
  out.piece_size = kPieceSize;
  out.run = options.run;
  out.model = options.model;
  out.number = options.number;
  out.paths = options.paths;
  out.prewritten = options.prewrite;
  return out;
}

/// Empties the metadata area, writes what has to be written once, and only then the superblocks.
void prepare(const sys::File& file, const VolumeOptions& options, bool prewritten) {
  const Bytes data = kSuperblockExtent + options.metadata;
  write_zeros(file, kSuperblockExtent, data);
  if (options.prewrite && !prewritten) write_zeros(file, data, data + options.capacity, options.progress);
  file.sync();
  Superblock superblock = wanted(options);
  superblock.prewritten = superblock.prewritten || prewritten;
  write_superblocks(file, superblock);
}

/// Whether a volume serves as it is when nothing of its contents is wanted.
bool serves(const Superblock& there, const VolumeOptions& options) {
  Superblock like = wanted(options);
  if (there.capacity < like.capacity || options.metadata > 0) return false;
  like.capacity = there.capacity;
  like.prewritten = like.prewritten || there.prewritten;
  return there == like;
}

/// Makes the run's volume one that holds nothing. While that goes on it says so, so that nobody takes half-erased
/// records for its contents.
void refit(const sys::File& file, Superblock there, const VolumeOptions& options) {
  const bool long_enough = there.capacity + there.metadata >= options.capacity + options.metadata;
  there.ready = false;
  write_superblocks(file, there);
  prepare(file, options, there.prewritten && long_enough);
}

/// Opens and locks the volume that is there.
sys::File open_existing(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) refuse(path, "is not a regular file", "move it away");
  sys::File file(path, {.write = true, .direct = true});
  if (!file.lock()) refuse_busy(path);
  return file;
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
    file_.rename(path);
    mine_ = false;
    return std::move(file_);
  }

 private:
  fs::path path_;
  sys::File file_;
  bool mine_ = false;
};

}  // namespace

Volume::Volume(const VolumeOptions& options)
    : path_(options.directory / kVolumeName), capacity_(options.capacity), metadata_(options.metadata) {
  require_directory(options.directory);
  if (options.reopen) {
    reopen(options);
  } else if (!reuse(options)) {
    create(options);
  }
}

void Volume::remove() noexcept {
  std::error_code ignored;
  fs::remove(path_, ignored);
}

void Volume::reopen(const VolumeOptions& options) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(path_, ignored))) {
    throw Error(ErrorCode::bad_input,
                text(path_.string(), " is missing; it held state of run '", options.run,
                     "'. Name the storage directory with which that run was started, or start the run anew"),
                ENOENT, path_.string());
  }
  sys::File file = open_existing(path_);
  const SuperblockPair there = read_superblocks(file);
  const std::string reason = reason_against_reopening(there, wanted(options), file.size());
  if (!reason.empty()) {
    refuse(path_, reason, "name the storage directories with which the run was started, or start the run anew");
  }
  notice_ = there.damage;
  capacity_ = there.superblock.capacity;
  metadata_ = there.superblock.metadata;
  file_ = std::move(file);
}

/// True when the volume that is there belongs to this run and is large enough: then it is ours, and what it holds is
/// given up. False when there is none or it may be replaced. Otherwise refuses.
bool Volume::reuse(const VolumeOptions& options) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(path_, ignored))) return false;
  sys::File old = open_existing(path_);
  const SuperblockPair there = read_superblocks(old);
  const bool older = there.state == SuperblockState::other_format && there.superblock.format < kVolumeFormat &&
                     there.superblock.run == options.run;
  const std::string reason = older ? "" : reason_against_owner(there, options.run);
  if (!reason.empty() && !options.overwrite) {
    refuse(path_, reason, "remove it, name another storage directory, or ask to overwrite it");
  }
  const Bytes needed = file_bytes(options);
  if (older || !reason.empty() || old.size() < needed || old.reserved() < needed) return false;
  if (!there.damage.empty() || !serves(there.superblock, options)) refit(old, there.superblock, options);
  file_ = std::move(old);
  return true;
}

void Volume::create(const VolumeOptions& options) {
  require_space(options);
  Draft draft(options.directory / (std::string(kVolumeName) + ".new"));
  draft.file().reserve(file_bytes(options));
  write_zeros(draft.file(), 0, kSuperblockExtent);
  prepare(draft.file(), options, false);
  file_ = draft.keep_as(path_);
  sys::sync_directory(options.directory);
}

}  // namespace spillway::storage
