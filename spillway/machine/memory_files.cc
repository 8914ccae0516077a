#include "spillway/machine/memory_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>

#include "spillway/base/error.h"
#include "spillway/memory/arena.h"
#include "spillway/sys/file.h"
#include "spillway/sys/mounts.h"
#include "spillway/sys/numa.h"
#include "spillway/sys/process.h"

namespace spillway::machine {
namespace {

/// A page that is written there takes another place than it had: so no space can be reserved, and where none is left
/// the kernel ends the process.
constexpr std::array<std::string_view, 3> kCopyOnWrite{"bcachefs", "btrfs", "zfs"};

[[noreturn]] void refuse(ErrorCode code, const std::filesystem::path& directory, const std::string& words) {
  throw Error(code, text("memory_file: ", directory.string(), " ", words), 0, directory.string());
}

/// A file there, without a name.
sys::File try_file(const std::filesystem::path& directory) {
  std::error_code unknown;
  if (!std::filesystem::is_directory(directory, unknown)) {
    refuse(ErrorCode::bad_input, directory, "is no directory that exists; create it, or name another");
  }
  try {
    return sys::nameless_file(directory);
  } catch (const Error& error) {
    refuse(error.code(), directory, text("takes no file: ", error.what()));
  }
}

void require_new(const std::vector<FileShare>& asked, std::size_t number) {
  for (std::size_t other = 0; other < number; ++other) {
    std::error_code unknown;
    if (!std::filesystem::equivalent(asked[other].directory, asked[number].directory, unknown)) continue;
    refuse(ErrorCode::bad_input, asked[number].directory, "is given twice; one file there has all of it");
  }
}

void require_mappable(const std::filesystem::path& directory, const std::string& type) {
  if (type == "hugetlbfs") {
    refuse(
        ErrorCode::unsupported, directory,
        "is a hugetlbfs, whose files are mapped by huge pages alone; a tmpfs mounted with huge=always has such, too");
  }
  if (std::ranges::find(kCopyOnWrite, type) != kCopyOnWrite.end()) {
    refuse(ErrorCode::unsupported, directory,
           text("is on ", type,
                ", which cannot promise space for a page that is written again; name a directory of a "
                "DAX file system, a tmpfs, ext4 or XFS"));
  }
}

/// `before`: bytes that are asked of the same file system already.
void require_space(const FileShare& share, bool in_dram, Bytes before) {
  auto there = sys::free_space(share.directory);
  if (in_dram) there = std::min(there, sys::dram_facts().available);
  there -= std::min(there, before);
  if (share.capacity <= there) return;
  const auto words = text("is asked for ", human(share.capacity), ", and ", human(there), " can be taken there");
  const auto would = text("It would fit with --memory_file ", share.directory.string(), "=", there / MiB, "MiB");
  refuse(ErrorCode::does_not_fit, share.directory, text(words, ". ", would));
}

std::string notice_of(const std::filesystem::path& directory, const std::string& type) {
  return text(
      "memory_file: ", directory.string(), " is on ", type.empty() ? "a file system of unknown kind" : type,
      " with a page cache, and no memory of its own: what lies there takes DRAM that dram_budget does not count, "
      "and the kernel writes it to the drive again and again; for a drive, storage is made");
}

bool is_dram(const std::optional<sys::Mount>& mount) {
  return mount && (mount->type == "tmpfs" || mount->type == "ramfs");
}

}  // namespace

std::vector<MemoryFile> check_files(const std::vector<FileShare>& asked, const std::string& root) {
  std::vector<MemoryFile> out;
  std::map<sys::DeviceId, Bytes> by_system;
  for (std::size_t n = 0; n < asked.size(); ++n) {
    const auto& share = asked[n];
    require_new(asked, n);
    const auto file = try_file(share.directory);
    const auto mount = sys::mount_of(share.directory, root);
    const auto type = mount ? mount->type : std::string();
    require_mappable(share.directory, type);
    auto& before = by_system[mount ? mount->device : sys::DeviceId{}];
    require_space(share, is_dram(mount), before);
    before += share.capacity;
    const bool cached = !is_dram(mount) && !sys::is_dax(file);
    out.push_back({.in_dram = is_dram(mount), .notice = cached ? notice_of(share.directory, type) : std::string()});
  }
  return out;
}

NodeRate measure_file(const FileShare& share, Bytes most, double seconds, const UpdateKind& kind) {
  const auto wanted = std::max(std::min(kRateMemory, most), kCalibrationMemory);
  const auto bytes = round_down(std::min(wanted, share.capacity), 4096);
  if (bytes < kCalibrationMemory) return {};
  const memory::Arena arena(bytes, {{0, bytes, memory::in_file(share.directory)}});
  return measure_memory(arena.span(), sys::thread_affinity(), seconds, kind);
}

}  // namespace spillway::machine
