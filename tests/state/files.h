// What the tests of this room share: a directory that goes away, safetensors files made by hand, and errors as text.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/state/safetensors.h"

namespace spillway::state {

/// A directory in memory where there is one: for tests that write thousands of files.
inline std::filesystem::path fast_place() {
  const std::filesystem::path memory = "/dev/shm";
  return ::access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path();
}

/// A new empty directory, removed with all it holds.
class TempDir {
 public:
  explicit TempDir(const std::filesystem::path& place = std::filesystem::temp_directory_path()) {
    std::string name = (place / "spillway-state-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void put(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string get(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// All names but those of sheets with digests, which lie beside every file.
inline std::set<std::string> file_names(const std::filesystem::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const auto name = entry.path().filename().string();
    if (!name.ends_with(".digests")) names.insert(name);
  }
  return names;
}

inline std::string length_field(std::uint64_t length) {
  std::string out;
  for (unsigned shift = 0; shift < 64; shift += 8) out += static_cast<char>((length >> shift) & 0xFFU);
  return out;
}

/// The bytes of a file with this header and data.
inline std::string safetensors(const std::string& json, const std::string& data) {
  return length_field(json.size()) + json + data;
}

inline std::string random_bytes(std::size_t size, std::mt19937_64& random) {
  std::string out(size, '\0');
  for (auto& c : out) c = static_cast<char>(random());
  return out;
}

inline std::string read_all(const SafetensorsReader& reader, const StoredTensor& tensor) {
  std::string out(tensor.elements * tensor.element_bytes, '\0');
  reader.read(tensor, 0, tensor.elements, reinterpret_cast<std::byte*>(out.data()));
  return out;
}
inline std::string read_all(const SafetensorsReader& reader, const std::string& name) {
  return read_all(reader, *reader.find(name));
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// What `call` threw; a test failure when it threw nothing.
template <class Call>
Error error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no spillway::Error was thrown";
  return {ErrorCode::internal, ""};
}

/// Expects an Error with this code whose message holds every part.
template <class Call>
void expect_error(ErrorCode code, const std::vector<std::string>& parts, Call call) {
  const auto error = error_of(std::move(call));
  EXPECT_EQ(error.code(), code) << error.what();
  for (const auto& part : parts) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << "'" << part << "' is not in: " << error.what();
  }
}

}  // namespace spillway::state
