#include "spillway/sys/cpu.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "spillway/sys/cgroups.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace spillway::sys {
namespace {

using Quota = std::optional<double>;

/// Microseconds of time in every period; "max" and -1 mean no limit.
Quota ratio(double quota, double period) {
  return quota > 0 && period > 0 ? Quota(quota / period) : std::nullopt;
}

Quota version2(const std::filesystem::path& group) {
  std::ifstream file(group / "cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period ? ratio(quota, period) : std::nullopt;
}

/// The length of a line that is dropped from caches: no CPU has shorter ones.
constexpr std::size_t kLine = 64;

void drop_line([[maybe_unused]] const std::byte* at) noexcept {
#if defined(__x86_64__)
  _mm_clflush(at);
#elif defined(__aarch64__)
  asm volatile("dc civac, %0" ::"r"(at) : "memory");
#endif
}

void wait_for_lines() noexcept {
#if defined(__x86_64__)
  _mm_mfence();
#elif defined(__aarch64__)
  asm volatile("dsb ish" ::: "memory");
#endif
}

Quota version1(const std::filesystem::path& group) {
  std::ifstream quota_file(group / "cpu.cfs_quota_us"), period_file(group / "cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_file >> quota && period_file >> period ? ratio(quota, period) : std::nullopt;
}

}  // namespace

Quota cpu_quota() {
  return cpu_quota_below("");
}

Quota cpu_quota_below(const std::string& root) {
  Quota tightest;
  for (const auto& group : cgroups(root, "cpu", {"cpu", "cpu,cpuacct"})) {
    const auto here = group.unified ? version2(group.directory) : version1(group.directory);
    if (here) tightest = std::min(tightest.value_or(*here), *here);
  }
  return tightest;
}

Bytes largest_caches(const std::string& root) {
  std::set<std::string> seen;  // each is told of by every CPU that shares it
  Bytes sum = 0;
  std::error_code failure;
  for (const auto& cpu : std::filesystem::directory_iterator(root + "/sys/devices/system/cpu", failure)) {
    for (const auto& cache : std::filesystem::directory_iterator(cpu.path() / "cache", failure)) {
      int level = 0;
      Bytes kibibytes = 0;
      std::string sharers;
      std::ifstream(cache.path() / "level") >> level;
      std::ifstream(cache.path() / "size") >> kibibytes;  // "32768K"
      std::ifstream(cache.path() / "shared_cpu_list") >> sharers;
      if (level == 3 && seen.insert(sharers).second) sum += kibibytes * KiB;
    }
  }
  return sum;
}

void drop_from_caches(std::span<const std::byte> bytes) noexcept {
  for (std::size_t i = 0; i < bytes.size(); i += kLine) drop_line(bytes.data() + i);
  if (!bytes.empty()) drop_line(&bytes.back());  // the last line, where the first byte is not the first of its line
  wait_for_lines();
}

}  // namespace spillway::sys
