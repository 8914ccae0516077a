#include "spillway/memory/arena.h"

#include <cerrno>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/sys/errno.h"
#include "spillway/sys/mapping.h"

namespace spillway::memory {
namespace {

[[noreturn]] void refuse(Bytes size, const char* what, int errno_value) {
  throw Error(ErrorCode::does_not_fit,
              text("cannot ", what, " an arena of ", human(size), " (", size, " bytes): ",
                   sys::describe_errno(errno_value), ". Give the engine a smaller dram_budget or free memory"),
              errno_value);
}

}  // namespace

Arena::Arena(Bytes size, ArenaOptions options) {
  if (size == 0) return;
  const Bytes mapped = round_up(size, sys::kHugePage);
  std::byte* data = mapped < size ? nullptr : sys::map_memory(mapped, sys::kHugePage);
  if (data == nullptr) refuse(size, "map", mapped < size ? ENOMEM : errno);
  if (options.huge_pages) sys::advise_huge_pages({data, mapped});
  if (options.touch && !sys::populate({data, mapped})) {
    const int failure = errno;
    sys::unmap_memory(data, mapped);
    refuse(size, "fill", failure);
  }
  data_ = data;
  size_ = size;
  mapped_ = mapped;
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
