#include "spillway/storage/volume.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "spillway/base/blank.h"
#include "spillway/base/error.h"
#include "spillway/storage/failure.h"
#include "spillway/storage/lock.h"
#include "spillway/storage/preparation.h"
#include "spillway/storage/raw_device.h"
#include "spillway/storage/refusal.h"
#include "spillway/storage/zeros.h"
#include "spillway/sys/block_device.h"
#include "spillway/sys/mapping.h"

namespace spillway::storage {

namespace fs = std::filesystem;

std::string volume_name(std::uint32_t shard, std::uint32_t world) {
  return world > 1 ? text("spillway.shard-", shard, "-of-", world, ".volume") : kVolumeName;
}

bool is_taken(const fs::path& path) {
  std::error_code failure;
  const fs::file_status status = fs::symlink_status(path, failure);
  if (status.type() == fs::file_type::none) std::rethrow_exception(unanswered(path, failure.value()));
  return fs::exists(status);
}

namespace {

using Clock = std::chrono::steady_clock;

/// On a busy machine the kernel lets go late of what a killed run had in flight: more than a second was seen.
constexpr auto kPatience = std::chrono::seconds(5);

std::chrono::milliseconds remaining(Clock::time_point end) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
}

void require_directory(const fs::path& directory) {
  std::error_code failure;
  const fs::file_status status = fs::status(directory, failure);
  if (status.type() == fs::file_type::none) std::rethrow_exception(unanswered(directory, failure.value()));
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

[[noreturn]] void refuse(const fs::path& path, const std::string& reason, const std::string& advice,
                         int errno_value = 0) {
  throw Error(ErrorCode::bad_input, text(path.string(), " ", reason, ": ", advice), errno_value, path.string());
}

void require_space(const VolumeOptions& options) {
  const Bytes free = sys::free_space(options.directory);
  const Bytes asked = volume_bytes(options.metadata, options.capacity);
  if (asked <= free) return;
  throw Error(ErrorCode::does_not_fit,
              text("the volume in ", options.directory.string(), " needs ", human(asked), " (", asked,
                   " bytes); the file system has ", human(free), " (", free,
                   " bytes) free. Free space there, keep more in DRAM, or name another storage directory"),
              0, options.directory.string());
}

/// The capacity that is there, which is at least what is asked for, and not nothing.
Bytes capacity_of_device(const fs::path& path, Bytes metadata, Bytes asked) {
  const Bytes size = sys::examine_block_device(path).size, head = volume_bytes(metadata, 0);
  const Bytes there = size > head ? (size - head) / kExtentAlignment * kExtentAlignment : 0;
  if (there > 0 && asked <= there) return there;
  throw Error(ErrorCode::does_not_fit,
              text("the volume on ", path.string(), " needs ", human(asked), " (", asked, " bytes) beside ",
                   human(head), " of records; the device has ", human(there), " (", there, " bytes) for it, of ",
                   human(size), ". Keep more in DRAM, or name a larger device"),
              0, path.string());
}

/// The length of a file: as it was before, unless it is kept.
class Length {
 public:
  explicit Length(const sys::File& file) : path_(file.path()), before_(file.size()), kept_(!file.is_regular()) {}
  ~Length() {
    std::error_code ignored;
    if (!kept_) fs::resize_file(path_, before_, ignored);
  }
  Length(const Length&) = delete;
  Length& operator=(const Length&) = delete;
  void keep() noexcept { kept_ = true; }

 private:
  fs::path path_;
  Bytes before_;
  bool kept_;
};

/// Reserves what a volume will have more of.
void lengthen(const sys::File& file, const Superblock& there, Bytes capacity) {
  const Bytes before = volume_bytes(there.metadata, there.capacity), after = volume_bytes(there.metadata, capacity);
  const Bytes more = after - std::min(after, std::max(before, file.reserved()));
  const Bytes free = sys::free_space(file.path().parent_path());
  if (more > free) {
    throw Error(ErrorCode::does_not_fit,
                text(file.path().string(), " holds ", human(there.capacity), " and should hold ", human(capacity), " (",
                     capacity, " bytes), which takes another ", human(more), " (", more,
                     " bytes); the file system has ", human(free), " (", free,
                     " bytes) free. Free space there, keep more in DRAM, or name another storage directory beside it"),
                0, file.path().string());
  }
  file.reserve(after, before);
}

/// Opens and locks the file that has a name. None when none has it: whoever had the file before us may have removed it
/// while we waited for the lock, and then nobody would find again what we write to it.
std::optional<sys::File> open_locked(const fs::path& path, const sys::FileOptions& options) {
  const auto end = Clock::now() + kPatience;
  while (is_taken(path)) {
    try {
      sys::File file(path, options);
      if (!lock_within(file, remaining(end))) refuse_busy(path);
      if (file.has_its_name()) return file;
    } catch (const Error& error) {
      if (error.errno_value() != ENOENT) throw;
    }
  }
  return std::nullopt;
}

/// Removes what a run that was killed has left under a name. Only a file that nobody has locked is a leftover, and a
/// link never is one of ours.
void remove_leftover(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status there = fs::symlink_status(path, ignored);
  if (!fs::exists(there)) return;
  if (!fs::is_regular_file(there)) refuse(path, "is not a regular file", "move it away");
  if (const auto leftover = open_locked(path, {.write = true, .follow = false})) fs::remove(path, ignored);
}

/// A new file that has its name and that no other process has. Between its making and its locking another process may
/// take it for a leftover.
sys::File make_locked(const fs::path& path, bool direct) {
  const auto end = Clock::now() + kPatience;
  while (Clock::now() < end) {
    remove_leftover(path);
    try {
      sys::File file(path, {.write = true, .create = true, .direct = direct});
      if (file.lock() && file.has_its_name()) return file;
    } catch (const Error& error) {
      if (error.errno_value() != EEXIST) throw;
    }
  }
  refuse_busy(path);
}

/// Whether anything was recorded in a volume. A run begins with that. What a volume held that is being prepared was
/// given up.
bool has_records(const sys::File& file, const SuperblockPair& there) {
  if (there.state != SuperblockState::valid || there.superblock.metadata == 0 || !there.superblock.ready) return false;
  const sys::Mapping first(std::min<Bytes>(there.superblock.metadata, kExtentAlignment));
  file.read(first.span(), kSuperblockExtent);
  return !blank(first.span());
}

void refuse_records(const sys::File& file, const SuperblockPair& there) {
  if (!has_records(file, there)) return;
  refuse(file.path(), "holds what this run has recorded",
         "go on with it (--resume_from_checkpoint true), or ask to overwrite it", EEXIST);
}

/// With the lock of the volume that is to be made: what was in flight to the others has ended when theirs are free.
void refuse_records_beside(const VolumeOptions& options) {
  if (!options.keep_records || options.overwrite) return;
  for (const fs::path& path : options.beside) {
    std::error_code ignored;
    if (!is_taken(path) || !(fs::is_regular_file(path, ignored) || fs::is_block_file(path, ignored))) continue;
    const auto file = open_locked(path, {.write = true});
    if (!file) continue;
    const SuperblockPair there = read_superblocks(*file);
    if (there.superblock.run == options.run) refuse_records(*file, there);
  }
}

/// A new file under a temporary name: removed again unless it is kept, which it is once its name is durable. While it
/// has that name and is locked, no other process makes a volume beside it.
class Draft {
 public:
  Draft(const fs::path& path, bool direct) : path_(path), file_(make_locked(path, direct)) {}
  ~Draft() {
    std::error_code ignored;
    if (file_.is_open() && file_.has_its_name()) fs::remove(path_, ignored);
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  [[nodiscard]] const sys::File& file() const noexcept { return file_; }
  [[nodiscard]] sys::File keep_as(fs::path path) {
    const auto directory = path.parent_path();
    file_.rename(path);
    path_ = std::move(path);
    sys::sync_directory(directory);
    return std::move(file_);
  }

 private:
  fs::path path_;
  sys::File file_;
};

}  // namespace

Volume::Volume(const VolumeOptions& options) : capacity_(options.capacity), metadata_(options.metadata) {
  if (options.directory.empty() == options.device.empty()) {
    throw Error(ErrorCode::bad_input, text("a storage path is a directory or a block device: ",
                                           options.device.empty() ? "name one" : "name one of them, not both"));
  }
  options.device.empty() ? open_in_directory(options) : open_on_device(options);
  if (options.device.empty()) name_.emplace(file_);
}

void Volume::remove() noexcept {
  if (!claim_.is_open()) {
    std::error_code ignored;
    if (file_.has_its_name()) fs::remove(path_, ignored);
    return;
  }
  try {
    write_superblocks(file_, given_back(read_superblocks(file_).superblock));
  } catch (const Error&) {  // then it stays what it was: of this run
  }
}

void give_back(const fs::path& device, const std::string& run) {
  const sys::File claim = open_block_device(device, false);
  const sys::File file(device, {.write = true});
  const SuperblockPair there = read_superblocks(file);
  if (there.state != SuperblockState::valid || there.superblock.run != run) return;
  write_superblocks(file, given_back(there.superblock));
}

void Volume::open_in_directory(const VolumeOptions& options) {
  require_directory(options.directory);
  path_ = options.directory / volume_name(options.shard, options.world);
  if (!options.reopen) {
    while (!make_anew(options)) {
    }
    return;
  }
  auto there = open_existing();
  if (!there) {
    throw Error(ErrorCode::bad_input,
                text(path_.string(), " is missing; it held state of run '", options.run,
                     "'. Name the storage directory with which that run was started, or start the run anew"),
                ENOENT, path_.string());
  }
  reopen(std::move(*there), options);
}

/// Opens and locks the volume that is there, if there is one.
std::optional<sys::File> Volume::open_existing() {
  std::error_code ignored;
  const bool regular = fs::is_regular_file(path_, ignored);
  if (!is_taken(path_)) return std::nullopt;
  if (!regular) refuse(path_, "is not a regular file", "move it away");
  try {
    probe_ = probe_file(path_);
    return open_locked(path_, {.write = true, .direct = probe_.direct});
  } catch (const Error& error) {
    if (error.errno_value() != ENOENT) throw;
    return std::nullopt;
  }
}

/// False when another process has made a volume in the meantime, which is to be looked at first. What is replaced stays
/// locked until its name is another file's.
bool Volume::make_anew(const VolumeOptions& options) {
  auto old = open_existing();
  if (old && reuse(*old, options)) {
    file_ = std::move(*old);
    return true;
  }
  return create(options, old.has_value());
}

/// True when the volume that is there belongs to this run and is large enough: then it is ours, and what it holds is
/// given up. False when it may be replaced. Otherwise refuses.
bool Volume::reuse(const sys::File& old, const VolumeOptions& options) {
  const SuperblockPair there = read_superblocks(old);
  const bool older = is_older_of(there, options.run);
  const std::string reason = older ? "" : reason_against_owner(there, options.run);
  if (!reason.empty() && !options.overwrite) {
    refuse(path_, reason, "remove it, name another storage directory, or ask to overwrite it");
  }
  const Bytes needed = volume_bytes(options.metadata, options.capacity);
  if (options.keep_records && !options.overwrite) refuse_records(old, there);
  refuse_records_beside(options);
  if (older || !reason.empty() || old.size() < needed || old.reserved() < needed) return false;
  if (!serves(there, options)) refit(old, there, options);
  return true;
}

/// False, and nothing was made, when a volume has come that is not to be replaced.
bool Volume::create(const VolumeOptions& options, bool replaces) {
  require_space(options);
  probe_ = storage::probe(options.directory);
  Draft draft(path_.string() + ".new", probe_.direct);
  if (!replaces && is_taken(path_)) return false;
  if (!replaces) refuse_records_beside(options);
  draft.file().reserve(volume_bytes(options.metadata, options.capacity));
  write_zeros(draft.file(), 0, kSuperblockExtent);
  prepare(draft.file(), options, false);
  file_ = draft.keep_as(path_);
  return true;
}

/// Whether there is room is asked before anything is erased.
void Volume::open_on_device(const VolumeOptions& asked) {
  path_ = asked.device;
  VolumeOptions options = asked;
  if (!asked.reopen) options.capacity = capacity_of_device(path_, asked.metadata, asked.capacity);
  claim_ = open_block_device(path_, asked.erase && !asked.reopen);
  probe_ = storage::probe(path_);
  sys::File device(path_, {.write = true, .direct = probe_.direct});
  if (!lock_within(device, kPatience)) {
    refuse(path_, "is locked by another program", "end that program, or name another device");
  }
  asked.reopen ? reopen(std::move(device), options) : take(std::move(device), options);
}

void Volume::take(sys::File device, const VolumeOptions& options) {
  const SuperblockPair there = read_superblocks(device);
  const bool free = there.state == SuperblockState::foreign || is_older_of(there, options.run);
  const std::string reason = free ? "" : reason_against_owner(there, options.run);
  if (!reason.empty() && !options.overwrite) {
    refuse(path_, reason, "name another device, or ask to overwrite it");
  }
  if (options.keep_records && !options.overwrite) refuse_records(device, there);
  refuse_records_beside(options);
  if (!serves(there, options)) refit(device, there, options);
  capacity_ = options.capacity;
  file_ = std::move(device);
}

void Volume::reopen(sys::File file, const VolumeOptions& options) {
  const SuperblockPair there = read_superblocks(file);
  const std::string reason = reason_against_reopening(there, wanted(options), file.size());
  if (!reason.empty()) {
    refuse(path_, reason,
           "name the storage directories and devices with which the run was started, or start the run anew",
           there.superblock.ready ? 0 : ENOENT);
  }
  notice_ = there.damage.empty() ? there.older : there.damage;
  capacity_ = there.superblock.capacity;
  metadata_ = there.superblock.metadata;
  if (options.capacity > capacity_) grow(file, there.superblock, options);
  file_ = std::move(file);
}

/// A device is taken whole.
void Volume::grow(const sys::File& file, const Superblock& there, const VolumeOptions& asked) {
  VolumeOptions options = asked;
  if (claim_.is_open()) options.capacity = capacity_of_device(path_, metadata_, asked.capacity);
  Length length(file);
  if (!claim_.is_open()) lengthen(file, there, options.capacity);
  prepare_more(file, there, options);
  length.keep();
  write_superblocks(file, grown(there, options));
  capacity_ = options.capacity;
}

}  // namespace spillway::storage
