#include "tests/device/staging_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

namespace spillway::device::fake {
namespace {

constexpr std::uintptr_t kPage = 4096;

std::uintptr_t begin_of(const Range& range) {
  return reinterpret_cast<std::uintptr_t>(range.at) / kPage * kPage;
}
std::uintptr_t end_of(const Range& range) {
  return (reinterpret_cast<std::uintptr_t>(range.at) + range.bytes + kPage - 1) / kPage * kPage;
}

void protect(const Range& range, int access) {
  static_cast<void>(::mprotect(reinterpret_cast<void*>(begin_of(range)), end_of(range) - begin_of(range), access));
}

int access_of(const Range& range) {
  return range.writes ? PROT_NONE : PROT_READ;
}

}  // namespace

void* StagingGuard::allocate(std::size_t bytes) {
  const int file = ::memfd_create("fake staging", 0);
  if (file < 0) return nullptr;
  void* sides[2] = {MAP_FAILED, MAP_FAILED};
  if (::ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    for (auto& side : sides) side = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  ::close(file);
  if (sides[0] == MAP_FAILED || sides[1] == MAP_FAILED) return nullptr;
  memory_[static_cast<std::byte*>(sides[0])] = {static_cast<std::byte*>(sides[1]), bytes};
  return sides[0];
}

void StagingGuard::free(void* address) {
  const auto it = memory_of(address);
  if (it == memory_.end()) return;
  std::erase_if(closed_, [&](const Closed& closed) { return memory_of(closed.range.at) == it; });
  ::munmap(it->second.second, it->second.bytes);
  ::munmap(address, it->second.bytes);
  memory_.erase(it);
}

std::map<const std::byte*, StagingGuard::Memory>::const_iterator StagingGuard::memory_of(const void* at) const {
  const auto* byte = static_cast<const std::byte*>(at);
  auto it = memory_.upper_bound(byte);
  if (it == memory_.begin()) return memory_.end();
  --it;
  return byte < it->first + it->second.bytes ? it : memory_.end();
}

std::byte* StagingGuard::driver_address(const void* at) const {
  auto* const byte = static_cast<std::byte*>(const_cast<void*>(at));
  const auto it = memory_of(at);
  return it == memory_.end() ? byte : it->second.second + (byte - it->first);
}

void StagingGuard::close(const Range& range, const std::string& name, Participant stream, std::uint64_t count) {
  if (range.bytes == 0 || memory_of(range.at) == memory_.end()) return;
  closed_.push_back({range, name, stream, count});
  protect(range, access_of(range));
}

void StagingGuard::reopen(const HappensBefore& order) {
  const auto open = [&](const Closed& it) { return order.is_awaited(it.stream, it.count); };
  for (const auto& it : closed_) {
    if (open(it)) protect(it.range, PROT_READ | PROT_WRITE);
  }
  if (std::erase_if(closed_, open) == 0) return;
  for (const auto& it : closed_) protect(it.range, access_of(it.range));  // pages may have been those of both
}

std::string StagingGuard::touch(const void* at) {
  const auto place = reinterpret_cast<std::uintptr_t>(at);
  const auto it = std::ranges::find_if(
      closed_, [&](const Closed& closed) { return begin_of(closed.range) <= place && place < end_of(closed.range); });
  if (it == closed_.end()) return {};
  std::ostringstream out;
  out << "the host, which touches staging memory at " << at << ", has not waited for " << it->name << " (stream "
      << it->stream << "), which " << (it->range.writes ? "writes" : "reads") << " there";
  protect(it->range, PROT_READ | PROT_WRITE);
  closed_.erase(it);
  return out.str();
}

}  // namespace spillway::device::fake
