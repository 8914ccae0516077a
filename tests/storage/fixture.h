// A path over any ring, with memory for its transfers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "spillway/storage/path.h"
#include "spillway/storage/waiter.h"
#include "spillway/sys/faulty_ring.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/ring.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::storage::testing {

using spillway::testing::TemporaryDirectory;

/// Where a piece of extent space lies in the file: after the superblock's extent.
inline constexpr Bytes kFirstExtent = 1 * MiB;

/// Words that differ from each other and from those of another seed.
inline void fill(std::span<std::byte> memory, std::uint64_t seed) {
  for (std::size_t at = 0; at + 8 <= memory.size(); at += 8) {
    const std::uint64_t word = (seed + 1) * 0x9E3779B97F4A7C15ULL + at;
    std::memcpy(memory.data() + at, &word, sizeof word);
  }
}

inline void clear(std::span<std::byte> memory) {
  std::ranges::fill(memory, std::byte{0});
}

inline bool is_filled(std::span<const std::byte> memory, std::uint64_t seed) {
  for (std::size_t at = 0; at + 8 <= memory.size(); at += 8) {
    const std::uint64_t word = (seed + 1) * 0x9E3779B97F4A7C15ULL + at;
    if (std::memcmp(memory.data() + at, &word, sizeof word) != 0) return false;
  }
  return true;
}

inline PathOptions options_in(const std::filesystem::path& directory, Bytes capacity = 32 * MiB) {
  PathOptions options;
  options.directory = directory;
  options.capacity = capacity;
  options.run = "test";
  return options;
}

/// A transfer of `memory` at an offset, without a listener.
inline Transfer transfer_of(Direction direction, std::span<std::byte> memory, Bytes offset,
                            std::string_view what = "") {
  Transfer transfer;
  transfer.direction = direction;
  transfer.memory = memory.data();
  transfer.bytes = memory.size();
  transfer.offset = offset;
  transfer.what = what;
  return transfer;
}

/// Collects the ends of transfers; safe from the path's thread.
class Listener {
 public:
  void attach(Transfer& transfer, std::uint64_t token) {
    transfer.done = &Listener::done;
    transfer.context = this;
    transfer.token = token;
  }
  /// Tokens in the order of their ends. Call after drain.
  [[nodiscard]] std::vector<std::uint64_t> ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  /// Errors met, in order of their transfers' ends. Call after drain.
  [[nodiscard]] std::vector<std::exception_ptr> errors() const {
    const std::lock_guard lock(mutex_);
    return errors_;
  }

  static void done(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept {
    auto& self = *static_cast<Listener*>(context);
    const std::lock_guard lock(self.mutex_);
    self.ended_.push_back(token);
    if (error) self.errors_.push_back(error);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::uint64_t> ended_;
  std::vector<std::exception_ptr> errors_;
};

/// Flushes a path and waits for it; throws its error.
inline void sync(Path& path) {
  Waiter end;
  path.sync(Waiter::done, &end, 0);
  end.wait();
}

}  // namespace spillway::storage::testing
