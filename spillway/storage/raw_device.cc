#include "spillway/storage/raw_device.h"

#include <cerrno>
#include <string>

#include "spillway/base/error.h"
#include "spillway/storage/superblock.h"
#include "spillway/sys/block_device.h"

namespace spillway::storage {
namespace {

[[noreturn]] void refuse_device(const std::filesystem::path& path, const std::string& why, const std::string& advice,
                                int errno_value = 0) {
  throw Error(ErrorCode::bad_input, text("the device ", path.string(), " cannot be used: ", why, "; ", advice),
              errno_value, path.string());
}

void require_usable(const std::filesystem::path& path) {
  const sys::BlockDevice device = sys::examine_block_device(path);
  if (device.logical_block > sys::kDirectAlignment) {
    refuse_device(path,
                  text("its blocks have ", human(device.logical_block), ", more than ", human(sys::kDirectAlignment)),
                  "name another device, or a directory of a file system on it");
  }
  if (device.read_only) refuse_device(path, "it is read-only", "name another device");
  const std::string use = sys::use_of_device(path);
  if (!use.empty()) refuse_device(path, use, "free it, or name another device", EBUSY);
}

sys::File open_alone(const std::filesystem::path& path) {
  try {
    return sys::File(path, {.write = true, .exclusive = true, .direct = true});
  } catch (const Error& error) {
    if (error.errno_value() != EBUSY) throw;
    refuse_device(path, "another program uses it",
                  "end that program (a run, or one that mounted it elsewhere), or name another device", EBUSY);
  }
}

bool begins_with_volume(const std::filesystem::path& path) {
  return read_superblocks(sys::File(path)).state != SuperblockState::foreign;
}

}  // namespace

/// A volume counts as one only where no other tool would find something of its own.
sys::File open_block_device(const std::filesystem::path& path, bool erase) {
  require_usable(path);
  sys::File device = open_alone(path);
  const std::string contents = sys::contents_of_device(path);
  const bool ours = contents == sys::kUnknownContents && begins_with_volume(path);
  if (contents.empty() || ours) return device;
  if (!erase) {
    refuse_device(path, text("it holds ", contents),
                  "name another device, or ask to erase it (--erase), which loses that");
  }
  sys::erase_device(path);
  return device;
}

}  // namespace spillway::storage
