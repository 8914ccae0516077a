#include "spillway/memory/arena.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/memory/pages.h"
#include "spillway/memory/room.h"
#include "spillway/sys/errno.h"
#include "spillway/sys/file.h"
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
    if (part.backing.kind != Backing::Kind::node) continue;
    auto at = std::ranges::find(out, part.backing.node, &NodeBytes::node);
    if (at == out.end()) at = out.insert(at, {part.backing.node, 0});
    at->bytes += part.bytes();
  }
  return out;
}

bool in_a_file(const ArenaPart& part) {
  return part.backing.kind == Backing::Kind::file;
}

/// What is to be anonymous memory.
std::vector<std::span<std::byte>> without_files(std::span<std::byte> all, const std::vector<ArenaPart>& parts) {
  std::vector<std::span<std::byte>> out;
  Bytes at = 0;
  for (const auto& part : parts) {
    if (!in_a_file(part)) continue;
    if (part.begin > at) out.push_back(all.subspan(at, part.begin - at));
    at = part.end;
  }
  if (at < all.size()) out.push_back(all.subspan(at));
  return out;
}

[[noreturn]] void refuse_space(const std::filesystem::path& directory, Bytes bytes, Bytes there, int errno_value) {
  throw Error(ErrorCode::does_not_fit,
              text("memory_file: ", human(bytes), " are to lie in ", directory.string(), ", and ", human(there),
                   " can be had there. Free some, or give less of it to --memory_file"),
              errno_value, directory.string());
}

/// A file without a name that has its space: a full file system is an error here, and not a signal in a step. What is
/// too large is not begun, since it would take all that others need.
sys::File reserved_file(const std::filesystem::path& directory, Bytes bytes) {
  auto file = sys::nameless_file(directory);
  const auto there = sys::free_space(directory);
  if (bytes > there) refuse_space(directory, bytes, there, ENOSPC);
  try {
    file.reserve(bytes);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::does_not_fit) refuse_space(directory, bytes, there, error.errno_value());
    throw;
  }
  return file;
}

void map_files(std::span<std::byte> arena, const std::vector<ArenaPart>& parts) {
  std::map<std::filesystem::path, Bytes> sizes;
  for (const auto& part : parts) {
    if (in_a_file(part)) sizes[part.backing.directory] += part.bytes();
  }
  for (const auto& [directory, bytes] : sizes) {
    const auto file = reserved_file(directory, bytes);
    Bytes at = 0;
    for (const auto& part : parts) {
      if (part.backing != in_file(directory)) continue;
      if (!sys::map_file(arena.subspan(part.begin, part.bytes()), file.fd(), at)) {
        sys::throw_errno(errno, text("map ", human(bytes), " of a file in"), directory);
      }
      at += part.bytes();
    }
  }
}

/// The size, when every node has room for its parts.
Bytes checked(Bytes size, const std::vector<ArenaPart>& parts) {
  const auto nodes = bytes_by_node(parts);
  if (!nodes.empty()) require_room(nodes, sys::nodes(), "the arena");
  return size;
}

}  // namespace

void Arena::take(std::byte* data, Bytes size, Bytes mapped) {
  if (data == nullptr) refuse(size, "map", mapped < size ? ENOMEM : errno);
  sys::keep_from_children({data, mapped});
  data_ = data;
  size_ = size;
  mapped_ = mapped;
}

Arena::Arena(Bytes size, ArenaOptions options) {
  if (size == 0) return;
  const Bytes mapped = round_up(size, sys::kHugePage);
  take(mapped < size ? nullptr : sys::map_memory(mapped, sys::kHugePage), size, mapped);
  if (options.huge_pages) sys::advise_huge_pages({data_, mapped_});
  if (!options.touch || sys::populate({data_, mapped_})) return;
  const int failure = errno;
  sys::unmap_memory(data_, mapped_);
  refuse(size, "fill", failure);
}

Arena::Arena(Addresses size) {
  if (size.bytes == 0) return;
  const Bytes mapped = round_up(size.bytes, sys::kHugePage);
  take(mapped < size.bytes ? nullptr : sys::reserve_addresses(mapped, sys::kHugePage), size.bytes, mapped);
}

void Arena::map_parts(const std::vector<ArenaPart>& parts) {
  const std::span<std::byte> all(data_, mapped_);
  for (const auto& range : without_files(all, parts)) {
    if (!sys::allow_access(range)) refuse(size_, "map", errno);
  }
  map_files(all, parts);
  sys::keep_from_children(all);
  for (const auto& part : parts) {
    if (in_a_file(part)) files_end_ = part.end;
  }
}

Arena::Arena(Bytes size, const std::vector<ArenaPart>& parts, ArenaOptions options)
    : Arena(Addresses{checked(size, parts)}) {
  if (size == 0) return;
  map_parts(parts);
  // Huge pages are asked for part by part, so that none lies on two nodes.
  if (options.huge_pages && parts.empty()) sys::advise_huge_pages({data_, mapped_});
  for (const auto& part : parts) {
    const auto range = span().subspan(part.begin, part.bytes());
    if (part.backing.kind == Backing::Kind::node) {
      place(range, {.nodes = {part.backing.node}}, options.huge_pages, "the arena");
    } else if (options.huge_pages) {
      sys::advise_huge_pages(range);
    }
  }
  if (options.touch && !sys::populate({data_, mapped_})) refuse(size, "fill", errno);
}

Arena::~Arena() {
  sys::unmap_memory(data_, mapped_);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)),
      files_end_(std::exchange(other.files_end_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    sys::unmap_memory(data_, mapped_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    mapped_ = std::exchange(other.mapped_, 0);
    files_end_ = std::exchange(other.files_end_, 0);
  }
  return *this;
}

}  // namespace spillway::memory
