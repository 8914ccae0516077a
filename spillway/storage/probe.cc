#include "spillway/storage/probe.h"

#include <system_error>

#include "spillway/base/error.h"
#include "spillway/sys/block_device.h"
#include "spillway/sys/direct_io.h"
#include "spillway/sys/file.h"
#include "spillway/sys/mounts.h"
#include "spillway/sys/shared_memory.h"

namespace spillway::storage {
namespace {

constexpr Bytes kTrialBytes = 128 * KiB;

/// A file of a few blocks; its name goes at once, the file with the object.
sys::File trial_file(const std::filesystem::path& directory) {
  const auto path = directory / text("spillway.probe.", sys::process_id());
  sys::File file(path, {.write = true, .create = true, .direct = true});
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  file.reserve(kTrialBytes);
  return file;
}

void fill_in_direct(Probe& found, const sys::File& file) {
  found.direct = file.direct();
  found.direct_refusal = file.direct_refusal();
  if (!found.direct) return;
  auto alignment = sys::reported_alignment(file);
  if (!alignment) alignment = sys::tried_alignment(file);
  found.direct = alignment && alignment->offset <= sys::kDirectAlignment && alignment->memory <= sys::kDirectAlignment;
  if (found.direct) {
    found.memory_alignment = alignment->memory;
    found.offset_alignment = alignment->offset;
  } else {
    found.direct_refusal = alignment ? text("it wants O_DIRECT aligned to ", human(alignment->offset))
                                     : std::string("no transfer with O_DIRECT works, whatever its alignment");
  }
}

Probe probe_device(const std::filesystem::path& path) {
  const sys::BlockDevice device = sys::examine_block_device(path);
  Probe found;
  fill_in_direct(found, sys::File(path, {.direct = true}));
  found.preferred_block = device.physical_block;
  found.file_system = "block device";
  found.free = device.size;
  return found;
}

Probe probe_directory(const std::filesystem::path& path) {
  Probe found;
  const sys::File file = trial_file(path);
  fill_in_direct(found, file);
  found.preferred_block = sys::preferred_block(file);
  const auto mount = sys::mount_of(path);
  found.file_system = mount ? mount->type : "unknown";
  found.remote = mount && sys::is_remote(*mount);
  found.free = sys::free_space(path);
  return found;
}

}  // namespace

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
