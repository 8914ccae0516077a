// The metadata areas of paths, as a journal uses them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "spillway/journal/media.h"
#include "spillway/storage/path.h"

namespace spillway::journal {

/// Calls under way when it is destroyed must have ended. Metadata goes before data.
class PathMedia : public Media {
 public:
  /// The paths outlive it; their positions are the journal's path numbers.
  explicit PathMedia(std::vector<storage::Path*> paths) : paths_(std::move(paths)) {}

  void write(std::uint32_t path, Bytes offset, std::span<const std::byte> bytes, Done done) override;
  void sync(std::uint32_t path, Done done) override;
  void read(std::uint32_t path, Bytes offset, std::span<std::byte> bytes) override;

 private:
  struct Call {
    PathMedia* media = nullptr;
    Done done;
  };
  Call* begin(Done done);
  static void ended(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept;

  std::vector<storage::Path*> paths_;
  std::mutex mutex_;  ///< guards what follows
  std::vector<std::unique_ptr<Call>> all_;
  std::vector<Call*> spare_;
};

}  // namespace spillway::journal
