#include "spillway/base/blank.h"

#include <cstring>

namespace spillway {

// Each byte is the one before it, and the first is zero: several times as fast as a loop over bytes.
bool blank(std::span<const std::byte> bytes) noexcept {
  if (bytes.empty()) return true;
  return bytes.front() == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

}  // namespace spillway
