#include "spillway/sys/mounts.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

namespace spillway::sys {
namespace {

/// The kernel writes blanks and backslashes of a name as \ and three octal digits.
std::string unescape(const std::string& word) {
  std::string plain;
  for (std::size_t at = 0; at < word.size(); ++at) {
    const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
    if (word[at] == '\\' && at + 3 < word.size() && std::all_of(&word[at + 1], &word[at + 4], is_octal)) {
      plain += static_cast<char>((word[at + 1] - '0') * 64 + (word[at + 2] - '0') * 8 + (word[at + 3] - '0'));
      at += 3;
    } else {
      plain += word[at];
    }
  }
  return plain;
}

/// A line of mountinfo: ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELD...] - TYPE SOURCE OPTIONS
std::optional<Mount> parse(const std::string& line) {
  std::istringstream words(line);
  std::string skipped, point, word;
  Mount mount;
  char colon = 0;
  words >> skipped >> skipped >> mount.device.major >> colon >> mount.device.minor >> skipped >> point;
  while (words >> word && word != "-") continue;
  if (!(words >> mount.type >> mount.source) || colon != ':') return std::nullopt;
  mount.point = unescape(point);
  mount.source = unescape(mount.source);
  return mount;
}

bool contains(const std::filesystem::path& outer, const std::filesystem::path& inner) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace

std::vector<Mount> mounts(const std::string& root) {
  std::vector<Mount> all;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    if (auto mount = parse(line)) all.push_back(*std::move(mount));
  }
  return all;
}

/// The last of several mounts on one point hides those before.
std::optional<Mount> mount_of(const std::filesystem::path& path, const std::string& root) {
  std::error_code failure;
  const auto whole = std::filesystem::canonical(path, failure);
  std::optional<Mount> deepest;
  for (Mount& mount : mounts(root)) {
    if (failure || !contains(mount.point == "/" ? "/" : mount.point, whole)) continue;
    if (!deepest || contains(deepest->point, mount.point)) deepest = std::move(mount);
  }
  return deepest;
}

bool is_remote(const Mount& mount) {
  static constexpr std::array<std::string_view, 24> kRemote{
      "9p",         "afs",          "beegfs",         "ceph",         "cifs",        "coda",
      "fuse.ceph",  "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs",
      "fuse.sshfs", "gfs2",         "glusterfs",      "gpfs",         "lustre",      "nfs",
      "nfs4",       "ocfs2",        "orangefs",       "panfs",        "smb3",        "wekafs"};
  if (std::ranges::find(kRemote, mount.type) != kRemote.end()) return true;
  const bool names_a_server = mount.source.starts_with("//") || mount.source.find(":/") != std::string::npos;
  return mount.type.starts_with("fuse") && mount.type != "fuseblk" && names_a_server;
}

}  // namespace spillway::sys
