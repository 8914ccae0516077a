#include "spillway/base/bytes.h"

#include <array>
#include <cstdio>

namespace spillway {

std::string human(Bytes bytes) {
  std::array<char, 32> out{};
  const auto value = static_cast<double>(bytes);
  if (bytes >= GiB) {
    std::snprintf(out.data(), out.size(), "%.2f GiB", value / static_cast<double>(GiB));
  } else if (bytes >= MiB) {
    std::snprintf(out.data(), out.size(), "%.1f MiB", value / static_cast<double>(MiB));
  } else if (bytes >= KiB) {
    std::snprintf(out.data(), out.size(), "%.1f KiB", value / static_cast<double>(KiB));
  } else {
    std::snprintf(out.data(), out.size(), "%llu B", static_cast<unsigned long long>(bytes));
  }
  return out.data();
}

}  // namespace spillway
