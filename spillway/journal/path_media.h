// The metadata areas of paths, as a journal uses them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "spillway/base/mutex.h"
#include "spillway/journal/media.h"
#include "spillway/storage/path.h"

namespace spillway::journal {

/// Every call must have ended before it is destroyed. Metadata goes before data.
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
  Mutex mutex_;
  std::vector<std::unique_ptr<Call>> all_ SPILLWAY_GUARDED_BY(mutex_);
  std::vector<Call*> spare_ SPILLWAY_GUARDED_BY(mutex_);
};

}  // namespace spillway::journal
