// A directory that is gone after the test.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace spillway::test {

class Directory {
 public:
  /// Below `parent`, where that exists.
  explicit Directory(const std::filesystem::path& parent = {}) {
    const auto base = std::filesystem::is_directory(parent) ? parent : std::filesystem::temp_directory_path();
    auto name = (base / "spillway-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace spillway::test
