#include "spillway/sys/sparse_bytes.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "spillway/base/blank.h"
#include "spillway/sys/errno.h"

namespace spillway::sys {
namespace {

constexpr Bytes kPart = 16 * KiB;

/// Where data go on from `from` on (all is data where that is not known); the file's size where none follow.
Bytes data_from(const File& file, Bytes from) {
  const auto found = ::lseek(file.fd(), static_cast<off_t>(from), SEEK_DATA);
  if (found >= 0) return static_cast<Bytes>(found);
  return errno == ENXIO ? file.size() : from;
}

Bytes hole_from(const File& file, Bytes from) {
  const auto found = ::lseek(file.fd(), static_cast<off_t>(from), SEEK_HOLE);
  return found < 0 ? file.size() : static_cast<Bytes>(found);
}

}  // namespace

SparseBytes::SparseBytes(const File& file) : size_(file.size()) {
  std::vector<std::byte> piece;
  for (Bytes at = data_from(file, 0); at < size_; at = data_from(file, at)) {
    for (const Bytes end = hole_from(file, at); at < end; at += piece.size()) {
      piece.resize(std::min(end - at, kPart - at % kPart));
      file.read(piece, at);
      if (!blank(piece)) write(piece, at);  // reserved and never written is no hole to tmpfs
    }
  }
}

void SparseBytes::write(std::span<const std::byte> bytes, Bytes offset) {
  size_ = std::max(size_, offset + bytes.size());
  while (!bytes.empty()) {
    const Bytes first = round_down(offset, kPart), inside = offset - first;
    auto& part = parts_[first];
    part.resize(kPart);
    const auto now = bytes.first(std::min<Bytes>(bytes.size(), kPart - inside));
    std::memcpy(part.data() + inside, now.data(), now.size());
    bytes = bytes.subspan(now.size());
    offset += now.size();
  }
}

std::vector<std::byte> SparseBytes::whole() const {
  std::vector<std::byte> out(size_);
  for (const auto& [offset, part] : parts_) {
    std::copy_n(part.begin(), std::min(kPart, size_ - offset), out.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  return out;
}

void SparseBytes::save(const std::filesystem::path& path) const {
  std::filesystem::remove(path);
  const File file(path, {.write = true, .create = true});
  if (::ftruncate(file.fd(), static_cast<off_t>(size_)) != 0) throw_errno(errno, "set the length of", path);
  for (const auto& [offset, part] : parts_) file.write(std::span(part).first(std::min(kPart, size_ - offset)), offset);
}

}  // namespace spillway::sys
