#include "spillway/memory/arena.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/memory/pages.h"
#include "spillway/memory/room.h"
#include "spillway/sys/errno.h"
#include "spillway/sys/fork.h"
#include "spillway/sys/mapping.h"

namespace spillway::memory {
namespace {

[[noreturn]] void refuse(Bytes size, const char* what, int errno_value) {
  throw Error(ErrorCode::does_not_fit,
              text("cannot ", what, " an arena of ", human(size), " (", size, " bytes): ",
                   sys::describe_errno(errno_value), ". Give the engine a smaller dram_budget or free memory"),
              errno_value);
}

std::vector<NodeBytes> bytes_by_node(const std::vector<ArenaPart>& parts) {
  std::vector<NodeBytes> out;
  for (const auto& part : parts) {
    auto at = std::ranges::find(out, part.node, &NodeBytes::node);
    if (at == out.end()) at = out.insert(at, {part.node, 0});
    at->bytes += part.end - part.begin;
  }
  return out;
}

/// The size, when every node has room for its parts.
Bytes checked(Bytes size, const std::vector<ArenaPart>& parts) {
  if (!parts.empty()) require_room(bytes_by_node(parts), sys::nodes(), "the arena");
  return size;
}

}  // namespace

void Arena::map(Bytes size, const ArenaOptions& options) {
  const Bytes mapped = round_up(size, sys::kHugePage);
  std::byte* data = mapped < size ? nullptr : sys::map_memory(mapped, sys::kHugePage);
  if (data == nullptr) refuse(size, "map", mapped < size ? ENOMEM : errno);
  sys::keep_from_children({data, mapped});
  if (options.huge_pages) sys::advise_huge_pages({data, mapped});
  data_ = data;
  size_ = size;
  mapped_ = mapped;
}

Arena::Arena(Bytes size, ArenaOptions options) {
  if (size == 0) return;
  map(size, options);
  if (!options.touch || sys::populate({data_, mapped_})) return;
  const int failure = errno;
  sys::unmap_memory(data_, mapped_);
  refuse(size, "fill", failure);
}

Arena::Arena(Bytes size, const std::vector<ArenaPart>& parts, ArenaOptions options)
    // Huge pages are asked for part by part, so that none lies on two nodes.
    : Arena(checked(size, parts),
            {.huge_pages = options.huge_pages && parts.empty(), .touch = options.touch && parts.empty()}) {
  if (parts.empty() || size == 0) return;
  for (const auto& part : parts) {
    place(span().subspan(part.begin, part.end - part.begin), {.nodes = {part.node}}, options.huge_pages, "the arena");
  }
  if (options.touch && !sys::populate({data_, mapped_})) refuse(size, "fill", errno);  // what no part names
}

Arena::~Arena() {
  sys::unmap_memory(data_, mapped_);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    sys::unmap_memory(data_, mapped_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    mapped_ = std::exchange(other.mapped_, 0);
  }
  return *this;
}

}  // namespace spillway::memory
