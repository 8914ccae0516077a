#include "spillway/storage/probe.h"

#include <algorithm>
#include <system_error>

#include "spillway/base/error.h"
#include "spillway/sys/block_device.h"
#include "spillway/sys/direct_io.h"
#include "spillway/sys/file.h"
#include "spillway/sys/mounts.h"

namespace spillway::storage {
namespace {

constexpr Bytes kTrialBytes = 128 * KiB;
constexpr const char* kBlockDevice = "block device";
constexpr const char* kUnknown = "unknown";

/// A file of a few blocks.
sys::File trial_file(const std::filesystem::path& directory) {
  sys::File file = sys::nameless_file(directory, {.direct = true});
  file.reserve(kTrialBytes);
  return file;
}

void fill_in_direct(Probe& found, const sys::File& file) {
  found.direct = file.direct();
  found.direct_refusal = file.direct_refusal();
  auto alignment = sys::reported_alignment(file);
  if (!alignment && found.direct) alignment = sys::tried_alignment(file);
  const Bytes asked = alignment ? std::max(alignment->memory, alignment->offset) : 0;
  if (asked > sys::kDirectAlignment) found.direct_alignment = asked;
  if (!found.direct) return;
  found.direct = alignment && asked <= sys::kDirectAlignment;
  if (found.direct) {
    found.memory_alignment = alignment->memory;
    found.offset_alignment = alignment->offset;
  } else {
    found.direct_refusal = alignment ? text("it wants O_DIRECT aligned to ", human(asked))
                                     : std::string("no transfer with O_DIRECT works, whatever its alignment");
  }
}

void fill_in_place(Probe& found, const std::filesystem::path& path) {
  const auto mount = sys::mount_of(path);
  found.file_system = mount ? mount->type : kUnknown;
  found.remote = mount && sys::is_remote(*mount);
}

std::string place_of(const Probe& found) {
  if (found.file_system == kBlockDevice) return "a block device";
  return found.file_system == kUnknown ? "a file system of an unknown kind" : found.file_system;
}

std::string without_direct(const Probe& found) {
  const std::string why = found.direct_alignment > 0 ? text("wants O_DIRECT aligned to ", human(found.direct_alignment),
                                                            ", more than ", human(sys::kDirectAlignment))
                                                     : std::string("has no O_DIRECT");
  return text("is on ", place_of(found), ", which ", why,
              ": it is used through the page cache, which takes memory that the plan does not count");
}

Probe probe_device(const std::filesystem::path& path) {
  const sys::BlockDevice device = sys::examine_block_device(path);
  Probe found;
  fill_in_direct(found, sys::File(path, {.direct = true}));
  found.preferred_block = device.physical_block;
  found.file_system = kBlockDevice;
  found.free = device.size;
  return found;
}

Probe probe_directory(const std::filesystem::path& path) {
  Probe found;
  const sys::File file = trial_file(path);
  fill_in_direct(found, file);
  found.preferred_block = sys::preferred_block(file);
  fill_in_place(found, path);
  found.free = sys::free_space(path);
  return found;
}

}  // namespace

std::vector<std::string> remarks(const Probe& found) {
  std::vector<std::string> out;
  if (!found.direct) out.push_back(without_direct(found));
  if (found.remote) {
    out.push_back(text("is on another machine (", place_of(found),
                       "): the network, and whoever else uses it there, decides how fast it is"));
  }
  return out;
}

Probe probe_file(const std::filesystem::path& path) {
  Probe found;
  const sys::File file(path, {.direct = true});
  fill_in_direct(found, file);
  found.preferred_block = sys::preferred_block(file);
  fill_in_place(found, path);
  found.free = sys::free_space(path);
  found.device = sys::device_of(path);
  return found;
}

Probe probe(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool device = sys::is_block_device(path);
  if (!device && std::filesystem::exists(path, ignored) && !std::filesystem::is_directory(path, ignored)) {
    throw Error(ErrorCode::bad_input, text(path.string(), " is neither a directory nor a block device"), 0,
                path.string());
  }
  const sys::DeviceId id = sys::device_of(path);
  Probe found = device ? probe_device(path) : probe_directory(path);
  found.device = id;
  return found;
}

}  // namespace spillway::storage
