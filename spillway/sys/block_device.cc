#include "spillway/sys/block_device.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#ifdef SPILLWAY_BLKID
#include <blkid/blkid.h>
#endif

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>
#include <vector>

#include "spillway/base/blank.h"
#include "spillway/sys/device_id.h"
#include "spillway/sys/errno.h"
#include "spillway/sys/file.h"
#include "spillway/sys/mounts.h"

namespace spillway::sys {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kEdge = 1 * MiB;  ///< of either end of a device: where signatures of any kind lie

void require_block_device(const fs::path& path) {
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  if (!fs::exists(status)) throw_errno(failure ? failure.value() : ENOENT, "open", path);
  if (fs::is_block_file(status)) return;
  throw Error(ErrorCode::bad_input,
              text(path.string(),
                   " is not a block device; name a device such as /dev/nvme1n1, or give a directory as "
                   "a storage path"),
              0, path.string());
}

template <class Number>
Number ask(const File& device, unsigned long question) {
  Number number = 0;
  if (::ioctl(device.fd(), question, &number) != 0) throw_errno(errno, "examine", device.path());
  return number;
}

DeviceId number_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw_errno(errno, "examine", path);
  return {major(status.st_rdev), minor(status.st_rdev)};
}

std::string attribute_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

fs::path kernel_entry(DeviceId device, const std::string& root = "") {
  std::error_code failure;
  auto entry = fs::canonical(text(root, "/sys/dev/block/", to_string(device)), failure);
  return failure ? fs::path() : entry;
}

#ifdef SPILLWAY_BLKID
using Probe = std::unique_ptr<blkid_struct_probe, decltype(&blkid_free_probe)>;

/// Looks for file systems, arrays, volume managers, encryption, swap and partition tables.
Probe probe_of(const File& device) {
  Probe probe(blkid_new_probe(), &blkid_free_probe);
  if (!probe || blkid_probe_set_device(probe.get(), device.fd(), 0, 0) != 0) {
    throw Error(ErrorCode::io, text("cannot look for what ", device.path().string(), " holds"), 0,
                device.path().string());
  }
  blkid_probe_enable_superblocks(probe.get(), 1);
  blkid_probe_set_superblocks_flags(probe.get(),
                                    BLKID_SUBLKS_TYPE | BLKID_SUBLKS_LABEL | BLKID_SUBLKS_USAGE | BLKID_SUBLKS_MAGIC);
  blkid_probe_enable_partitions(probe.get(), 1);
  blkid_probe_set_partitions_flags(probe.get(), BLKID_PARTS_MAGIC);
  return probe;
}

std::string value_of(const Probe& probe, const char* name) {
  const char* value = nullptr;
  return blkid_probe_lookup_value(probe.get(), name, &value, nullptr) == 0 ? value : "";
}

std::string describe(const Probe& probe) {
  if (const std::string table = value_of(probe, "PTTYPE"); !table.empty()) return text("a ", table, " partition table");
  const std::string type = value_of(probe, "TYPE"), label = value_of(probe, "LABEL");
  const std::string kind = value_of(probe, "USAGE") == "filesystem" ? " file system" : " signature";
  return text(type.find_first_of("aeio") == 0 ? "an " : "a ", type, kind, label.empty() ? "" : " '" + label + "'");
}

bool is_zero(const File& device, Bytes from, Bytes bytes) {
  std::vector<std::byte> data(bytes);
  device.read(data, from);
  return blank(data);
}

void zero(const File& device, Bytes from, Bytes bytes) {
  device.write(std::vector<std::byte>(bytes), from);
}
#endif  // SPILLWAY_BLKID

/// A device or a part of it, by the kernel's name.
struct Part {
  DeviceId number;
  fs::path entry;
};

std::vector<Part> parts_of(DeviceId device, const std::string& root) {
  const fs::path entry = kernel_entry(device, root);
  std::vector<Part> parts{{device, entry}};
  std::error_code failure;
  for (const auto& inner : fs::directory_iterator(entry, failure)) {
    std::error_code none;
    Part part{{}, inner.path()};
    char colon = 0;
    if (!fs::exists(part.entry / "partition", none)) continue;
    if (std::ifstream(part.entry / "dev") >> part.number.major >> colon >> part.number.minor) parts.push_back(part);
  }
  return parts;
}

std::string use_of_part(const Part& part, const std::string& root) {
  for (const Mount& mount : mounts(root)) {
    const bool by_name = !part.entry.empty() && mount.source == fs::path("/dev") / part.entry.filename();
    if (mount.device == part.number || by_name) return text("is mounted at ", mount.point.string());
  }
  std::error_code failure;
  for (const auto& holder : fs::directory_iterator(part.entry / "holders", failure)) {
    return text("is part of ", holder.path().filename().string());
  }
  std::ifstream swaps(root + "/proc/swaps");
  for (std::string line; std::getline(swaps, line);) {
    const fs::path name = line.substr(0, line.find_first_of(" \t"));
    if (!part.entry.empty() && name == fs::path("/dev") / part.entry.filename()) return "is used for swapping";
  }
  return {};
}

}  // namespace

bool is_block_device(const fs::path& path) noexcept {
  std::error_code failure;
  return fs::is_block_file(path, failure);
}

BlockDevice examine_block_device(const fs::path& path) {
  require_block_device(path);
  const File device(path);
  BlockDevice facts;
  facts.size = ask<std::uint64_t>(device, BLKGETSIZE64);
  facts.logical_block = static_cast<Bytes>(ask<int>(device, BLKSSZGET));
  facts.physical_block = ask<unsigned>(device, BLKPBSZGET);
  facts.read_only = ask<int>(device, BLKROGET) != 0;
  const fs::path entry = kernel_entry(whole_device(number_of(path)));
  const std::string rotational = attribute_of(entry / "queue/rotational");
  if (!rotational.empty()) facts.rotational = rotational == "1";
  facts.model = attribute_of(entry / "device/model");
  return facts;
}

#ifdef SPILLWAY_BLKID
std::string contents_of_device(const fs::path& path) {
  require_block_device(path);
  const File device(path);
  const Probe probe = probe_of(device);
  const int found = blkid_do_probe(probe.get());
  if (found < 0) throw Error(ErrorCode::io, text("cannot read what ", path.string(), " holds"), 0, path.string());
  if (found == 0) return describe(probe);
  const Bytes size = ask<std::uint64_t>(device, BLKGETSIZE64), edge = std::min(kEdge, size);
  return is_zero(device, 0, edge) && is_zero(device, size - edge, edge) ? "" : kUnknownContents;
}

#endif
std::string use_of_device(const fs::path& path, const std::string& root) {
  for (const Part& part : parts_of(number_of(path), root)) {
    const std::string use = use_of_part(part, root);
    if (use.empty()) continue;
    const bool whole = part.number == number_of(path);
    return text(whole ? "it" : "its partition " + part.entry.filename().string(), " ", use);
  }
  return {};
}

#ifdef SPILLWAY_BLKID
void erase_device(const fs::path& path) {
  require_block_device(path);
  const File device(path, {.write = true});
  const Probe probe = probe_of(device);
  while (blkid_do_probe(probe.get()) == 0) {
    if (blkid_do_wipe(probe.get(), 0) != 0) throw_errno(errno, "erase", path);
  }
  const Bytes size = ask<std::uint64_t>(device, BLKGETSIZE64), edge = std::min(kEdge, size);
  zero(device, 0, edge);
  zero(device, size - edge, edge);
  device.sync();
}
#else
namespace {

[[noreturn]] void cannot_look(const fs::path& path) {
  require_block_device(path);
  throw Error(
      ErrorCode::unsupported,
      text("cannot look for what ", path.string(), " holds: libblkid was not there when this was built; build it ",
           "where libblkid-dev is, or name a directory as a storage path"),
      0, path.string());
}

}  // namespace

std::string contents_of_device(const fs::path& path) {
  cannot_look(path);
}
void erase_device(const fs::path& path) {
  cannot_look(path);
}
#endif

}  // namespace spillway::sys
