#include "spillway/sys/numa.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "spillway/base/error.h"
#include "spillway/sys/errno.h"

namespace spillway::sys {
namespace {

// linux/mempolicy.h; older headers lack the last two.
constexpr int kDefault = 0, kPreferred = 1, kBind = 2, kInterleave = 3, kPreferredMany = 5, kWeighted = 6;
constexpr unsigned kMove = 2;  // MPOL_MF_MOVE: pages of this process only

constexpr std::size_t kMaskBits = 1024;
constexpr std::size_t kBatch = 4096;  // pages that are asked or moved in one call

int mode_of(MemoryPolicy policy) noexcept {
  switch (policy) {
    case MemoryPolicy::standard:
      return kDefault;
    case MemoryPolicy::preferred:
      return kPreferred;
    case MemoryPolicy::bind:
      return kBind;
    case MemoryPolicy::any_of:
      return kPreferredMany;
    case MemoryPolicy::interleave:
      return kInterleave;
    case MemoryPolicy::weighted:
      return kWeighted;
  }
  return kDefault;
}

/// A set of nodes as the kernel takes it.
struct Mask {
  static constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMaskBits / kBits> words{};

  explicit Mask(std::span<const int> nodes = {}) noexcept {
    for (const int node : nodes) {
      const auto bit = static_cast<std::size_t>(node);
      if (bit < kMaskBits) words[bit / kBits] |= 1UL << (bit % kBits);
    }
  }
  /// The kernel takes one more than the number of bits.
  static constexpr unsigned long kLength = kMaskBits + 1;
};

int result(long returned) noexcept {
  return returned < 0 ? errno : 0;
}

int query(std::span<void*> pages, int* status) noexcept {
  return result(::syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, status, 0));
}

std::byte* first_page(std::span<const std::byte> range) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(range.data());
  return const_cast<std::byte*>(range.data()) -
         address % kPage;  // the kernel takes addresses of pages, and writes none
}

using CpuSet = std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)>;

/// The most CPUs that any machine has.
constexpr std::size_t kMostCpus = 8192;

CpuSet cpu_set() {
  CpuSet set(CPU_ALLOC(kMostCpus), [](cpu_set_t* at) { CPU_FREE(at); });
  CPU_ZERO_S(CPU_ALLOC_SIZE(kMostCpus), set.get());
  return set;
}

}  // namespace

std::string try_numa_calls() {
  const std::string advice =
      "; memory cannot be placed on a node from here. Containers refuse this unless they are given the right "
      "(docker run --cap-add SYS_NICE)";
  const Mapping memory(kPage);
  if (const int failure = set_memory_policy(memory.span(), MemoryPolicy::standard, {}); failure != 0) {
    return text("mbind: ", describe_errno(failure), advice);
  }
  int node = kAbsent;
  if (const int failure = page_nodes(memory.span(), {&node, 1}); failure != 0) {
    return text("move_pages: ", describe_errno(failure), advice);
  }
  int mode = 0;
  if (const int failure = result(::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0)); failure != 0) {
    return text("get_mempolicy: ", describe_errno(failure), advice);
  }
  return {};
}

const std::string& numa_refusal() {
  static const std::string refusal = try_numa_calls();
  return refusal;
}

int set_memory_policy(std::span<std::byte> range, MemoryPolicy policy, std::span<const int> nodes) noexcept {
  if (range.empty()) return 0;
  const Mask mask(policy == MemoryPolicy::standard ? std::span<const int>{} : nodes);
  return result(::syscall(SYS_mbind, range.data(), range.size(), mode_of(policy), mask.words.data(), Mask::kLength, 0));
}

int set_thread_memory_policy(MemoryPolicy policy, std::span<const int> nodes) noexcept {
  const Mask mask(policy == MemoryPolicy::standard ? std::span<const int>{} : nodes);
  return result(::syscall(SYS_set_mempolicy, mode_of(policy), mask.words.data(), Mask::kLength));
}

std::vector<int> bound_nodes() noexcept {
  Mask mask;
  int mode = 0;
  std::vector<int> out;
  if (::syscall(SYS_get_mempolicy, &mode, mask.words.data(), Mask::kLength, nullptr, 0) != 0) return out;
  constexpr int kFlags = 0xE000;  // MPOL_MODE_FLAGS
  if ((mode & ~kFlags) != kBind) return out;
  for (std::size_t node = 0; node < kMaskBits; ++node) {
    if ((mask.words[node / Mask::kBits] >> (node % Mask::kBits) & 1UL) != 0) out.push_back(static_cast<int>(node));
  }
  return out;
}

std::size_t page_count(std::span<const std::byte> range) noexcept {
  if (range.empty()) return 0;
  const auto before = static_cast<std::size_t>(range.data() - first_page(range));
  return ceil_div(before + range.size(), kPage);
}

int page_nodes(std::span<const std::byte> range, std::span<int> out) noexcept {
  std::byte* page = first_page(range);
  std::array<void*, kBatch> pages;
  for (std::size_t done = 0; done < out.size();) {
    const std::size_t count = std::min(kBatch, out.size() - done);
    for (std::size_t i = 0; i < count; ++i, page += kPage) pages[i] = page;
    if (const int failure = query({pages.data(), count}, out.data() + done); failure != 0) return failure;
    done += count;
  }
  for (int& node : out) node = std::max(node, kAbsent);  // the kernel's errnos: not there, or the page of zeros
  return 0;
}

int move_pages(std::span<std::byte> range, std::span<const int> nodes) noexcept {
  std::byte* page = first_page(range);
  std::array<void*, kBatch> pages;
  std::array<int, kBatch> to, status;
  for (std::size_t done = 0; done < nodes.size();) {
    std::size_t count = 0;
    for (; done < nodes.size() && count < kBatch; ++done, page += kPage) {
      if (nodes[done] == kAbsent) continue;
      pages[count] = page;
      to[count++] = nodes[done];
    }
    if (count == 0) continue;
    // Positive: that many did not move, which the caller sees by asking.
    if (::syscall(SYS_move_pages, 0, count, pages.data(), to.data(), status.data(), kMove) < 0) {
      if (errno != ENOMEM && errno != EBUSY && errno != EAGAIN) return errno;
    }
  }
  return 0;
}

std::vector<unsigned> weighted_interleave(const std::string& root) {
  std::vector<unsigned> out;
  std::error_code missing;
  const std::string prefix = "node";
  for (const auto& entry :
       std::filesystem::directory_iterator(root + "/sys/kernel/mm/mempolicy/weighted_interleave", missing)) {
    const std::string name = entry.path().filename();
    std::ifstream file(entry.path());
    unsigned weight = 0;
    if (!name.starts_with(prefix) || !(file >> weight)) continue;
    const auto node = static_cast<std::size_t>(std::atoi(name.c_str() + prefix.size()));
    if (node >= out.size()) out.resize(node + 1);
    out[node] = weight;
  }
  return out;
}

std::vector<unsigned> thread_affinity() {
  const CpuSet set = cpu_set();
  std::vector<unsigned> out;
  if (::sched_getaffinity(0, CPU_ALLOC_SIZE(kMostCpus), set.get()) != 0) return out;
  for (unsigned cpu = 0; cpu < kMostCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, CPU_ALLOC_SIZE(kMostCpus), set.get())) out.push_back(cpu);
  }
  return out;
}

bool set_thread_affinity(std::span<const unsigned> cpus) {
  const std::vector<unsigned> own = thread_affinity();
  const CpuSet set = cpu_set();
  bool any = false;
  for (const unsigned cpu : cpus) {
    if (!std::ranges::binary_search(own, cpu)) continue;
    CPU_SET_S(cpu, CPU_ALLOC_SIZE(kMostCpus), set.get());
    any = true;
  }
  return any && ::sched_setaffinity(0, CPU_ALLOC_SIZE(kMostCpus), set.get()) == 0;
}

}  // namespace spillway::sys
