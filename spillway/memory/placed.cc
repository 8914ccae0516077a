#include "spillway/memory/placed.h"

#include <cerrno>

#include "spillway/base/error.h"
#include "spillway/memory/pages.h"
#include "spillway/memory/room.h"
#include "spillway/sys/errno.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/numa.h"

namespace spillway::memory {
namespace {

constexpr const char* kWhat = "a tensor";

std::byte* map(Bytes size) {
  std::byte* data = sys::map_memory(size, size >= sys::kHugePage ? sys::kHugePage : sys::kPage);
  if (data != nullptr) return data;
  const int failure = errno;
  throw Error(ErrorCode::does_not_fit, text("cannot map ", human(size), " of memory: ", sys::describe_errno(failure)),
              failure);
}

void fill(std::span<std::byte> range, bool huge_pages) {
  if (huge_pages) sys::advise_huge_pages(range);
  if (sys::populate(range)) return;
  const int failure = errno;
  throw Error(ErrorCode::does_not_fit,
              text("cannot fill ", human(range.size()), " of memory: ", sys::describe_errno(failure)), failure);
}

}  // namespace

Placed::Placed(Bytes size, const Placement& placement, PlacedOptions options) : size_(size) {
  require_room(size, placement, kWhat);
  data_ = map(size);
  try {
    const std::span<std::byte> all(data_, round_up(size, sys::kPage));
    placement.nodes.empty() ? fill(all, options.huge_pages) : place(all, placement, options.huge_pages, kWhat);
  } catch (...) {
    sys::unmap_memory(data_, size_);
    throw;
  }
}

Placed::~Placed() {
  sys::unmap_memory(data_, size_);
}

}  // namespace spillway::memory
