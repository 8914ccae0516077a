// A directory that is gone after the test.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace spillway::test {

class Directory {
 public:
  Directory() {
    auto name = (std::filesystem::temp_directory_path() / "spillway-XXXXXX").string();
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
