#include "spillway/sys/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/sys/cgroups.h"

namespace spillway::sys {
namespace {

/// Limits above this mean "none": v1 writes the largest page-aligned 63-bit number.
constexpr Bytes kNoLimit = Bytes{1} << 60;

/// The number after `key` at the start of a line of `path`; nothing when file or key are missing.
std::optional<Bytes> number_in(const std::filesystem::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::istringstream rest(line.substr(key.size()));
    Bytes number = 0;
    if (rest >> number) return number;
  }
  return std::nullopt;
}

Bytes kilobytes_in(const std::filesystem::path& path, std::string_view key) {
  const auto number = number_in(path, key);
  if (!number) {
    throw Error(ErrorCode::unsupported,
                text("no '", key, "' in ", path.string(), "; mount /proc so that memory can be measured"), 0,
                path.string());
  }
  return *number * KiB;
}

/// Names of the files of one cgroup version.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  ///< key in memory.stat
};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file "};

std::optional<GroupMemory> limit_of(const std::filesystem::path& group, const GroupFiles& files) {
  const auto limit = number_in(group / files.limit, "");
  const auto usage = number_in(group / files.usage, "");
  if (!limit || !usage || *limit >= kNoLimit) return std::nullopt;
  const Bytes cache = std::min(*usage, number_in(group / "memory.stat", files.reclaimable).value_or(0));
  const Bytes held = *usage - cache;
  return GroupMemory{*limit, *limit > held ? *limit - held : 0};
}

void tighten(std::optional<GroupMemory>& tightest, const std::optional<GroupMemory>& other) {
  if (!other) return;
  if (!tightest) tightest = other;
  tightest->limit = std::min(tightest->limit, other->limit);
  tightest->headroom = std::min(tightest->headroom, other->headroom);
}

std::optional<GroupMemory> group_memory(const std::string& root) {
  std::optional<GroupMemory> tightest;
  for (const auto& group : cgroups(root, "memory", {"memory"})) {
    tighten(tightest, limit_of(group.directory, group.unified ? kVersion2 : kVersion1));
  }
  return tightest;
}

}  // namespace

ProcessMemory process_memory() {
  return {kilobytes_in("/proc/self/status", "VmRSS:"), kilobytes_in("/proc/self/status", "VmHWM:")};
}

bool reset_peak_resident() noexcept {
  const int fd = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = ::write(fd, "5", 1) == 1;
  ::close(fd);
  return done;
}

DramFacts dram_facts() {
  return dram_facts_below("");
}

DramFacts dram_facts_below(const std::string& root) {
  DramFacts facts;
  facts.total = kilobytes_in(root + "/proc/meminfo", "MemTotal:");
  facts.available = kilobytes_in(root + "/proc/meminfo", "MemAvailable:");
  facts.group = group_memory(root);
  if (facts.group) {
    facts.total = std::min(facts.total, facts.group->limit);
    facts.available = std::min(facts.available, facts.group->headroom);
  }
  return facts;
}

}  // namespace spillway::sys
