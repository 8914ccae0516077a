// Writes, flushes, votes and messages that the decisions of a journal ask for.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <span>

#include "spillway/journal/catalog.h"
#include "spillway/journal/flushes.h"
#include "spillway/journal/journal_spec.h"
#include "spillway/journal/manifest.h"
#include "spillway/journal/vote.h"

namespace spillway::journal {

/// Memory of records and commits, aligned for direct transfers.
class MetadataBuffer {
 public:
  explicit MetadataBuffer(Bytes bytes)
      : bytes_(bytes), memory_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kMetadataAlignment}))) {}
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept {
      ::operator delete (memory, std::align_val_t{kMetadataAlignment});
    }
  };
  Bytes bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

/// The manifest, or why there is none.
using CheckpointDone = std::function<void(const Manifest&, std::exception_ptr)>;

/// A record on its way to its slots, one per copy.
struct RecordTask {
  ObjectKind kind = ObjectKind::snapshot;
  std::uint32_t object = 0;
  Version* version = nullptr;
  std::array<std::uint32_t, kCopies> paths{};
  std::unique_ptr<MetadataBuffer> buffer;
  std::uint32_t open = 0;  ///< copies not written yet
  PathSet done = 0;
};

struct Action {
  enum class Kind : std::uint8_t { write, sync, vote, opened, durable, released, checkpoint, path_failed, failed };
  Kind kind = Kind::sync;
  std::uint32_t path = 0;
  Bytes offset = 0;                       ///< of a write
  std::span<const std::byte> bytes = {};  ///< of a write
  RecordTask* task = nullptr;             ///< whose write it is; null: the commit's
  std::uint32_t copy = 0;
  std::uint64_t step = 0;
  std::int64_t vote = kNoStep;
  Version* version = nullptr;  ///< released; for recycle()
  std::exception_ptr error = nullptr;
  std::shared_ptr<Manifest> manifest = nullptr;
  CheckpointDone done = nullptr;
};
/// They are to be carried out in their order.
using Actions = std::deque<Action>;

}  // namespace spillway::journal
