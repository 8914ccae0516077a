#include "spillway/storage/listing.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "spillway/base/error.h"
#include "spillway/storage/unreadable.h"
#include "spillway/storage/volume.h"

namespace spillway::storage {
namespace {

namespace fs = std::filesystem;

bool is_number(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// Whether it is one that volume_name() makes.
bool is_volume_name(std::string_view name) {
  constexpr std::string_view kBefore = "spillway.shard-", kBetween = "-of-", kBehind = ".volume";
  if (name == kVolumeName) return true;
  if (name.size() <= kBefore.size() + kBehind.size() || !name.starts_with(kBefore) || !name.ends_with(kBehind)) {
    return false;
  }
  const auto numbers = name.substr(kBefore.size(), name.size() - kBefore.size() - kBehind.size());
  const auto between = numbers.find(kBetween);
  return between != std::string_view::npos && is_number(numbers.substr(0, between)) &&
         is_number(numbers.substr(between + kBetween.size()));
}

/// Nothing where the file is gone: another process may have removed it since its name was read.
void add_volume(const fs::path& file, std::vector<ListedVolume>& out) {
  SuperblockPair pair;
  try {
    if (!why_unreadable([&] { pair = read_superblocks(sys::File(file)); }).empty()) return;
  } catch (const Error& error) {
    if (error.errno_value() != ENOENT) throw;
    return;
  }
  if (pair.state == SuperblockState::valid) out.push_back({file, std::move(pair.superblock)});
}

}  // namespace

std::vector<ListedVolume> list_volumes(const fs::path& place) {
  std::vector<ListedVolume> out;
  if (!is_taken(place)) return out;
  std::error_code failure;
  if (!fs::is_directory(place, failure)) {
    add_volume(place, out);
    return out;
  }
  for (fs::directory_iterator it(place, failure), end; !failure && it != end; it.increment(failure)) {
    if (is_volume_name(it->path().filename().string())) add_volume(it->path(), out);
  }
  if (failure) {
    throw Error(ErrorCode::io, text("the storage directory ", place.string(), " cannot be listed: ", failure.message()),
                failure.value(), place.string());
  }
  std::ranges::sort(out, {}, &ListedVolume::file);
  return out;
}

}  // namespace spillway::storage
