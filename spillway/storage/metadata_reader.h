// Walks over the slots of all paths.
#pragma once

#include <functional>
#include <vector>

#include "spillway/storage/recovery.h"

namespace spillway::storage {

/// Reads in long runs; a slot that the drive cannot give is damaged. Keeps the books of what was not whole.
class MetadataReader {
 public:
  MetadataReader(const JournalSpec& spec, Media& media, const RecoveryOptions& options);

  /// Calls `found` with every whole commit.
  void commits(const std::function<void(const Commit&, std::uint32_t slot)>& found);
  /// Calls `found` with every whole record of a kind.
  void records(ObjectKind kind,
               const std::function<void(const RecordHead&, const std::vector<Piece>&, std::uint32_t slot)>& found);

  [[nodiscard]] const MetadataLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] std::string name(ObjectKind kind, std::uint32_t object) const;
  /// "path 0 at byte 4096 and path 1 at byte 8192 of the metadata": where an object's records are written.
  [[nodiscard]] std::string places_of(ObjectKind kind, std::uint32_t object) const;

  std::vector<Damage> damage;
  std::uint64_t foreign = 0;

 private:
  using Slot = std::function<void(Bytes offset, std::span<const std::byte> bytes)>;
  /// `count` slots of `size` bytes from `offset` on; an empty span for one that could not be read.
  void walk(std::uint32_t path, Bytes offset, Bytes size, Bytes count, const Slot& slot);
  void walk_run(std::uint32_t path, Bytes offset, Bytes size, Bytes count, const Slot& slot);
  bool whole(SlotState state, std::uint32_t path, Bytes offset, const std::function<std::string()>& what);

  void check_padding(std::span<const std::byte> slot, Bytes used, std::uint32_t path, Bytes offset,
                     const std::function<std::string()>& what);

  MetadataLayout layout_;
  std::uint32_t paths_;
  Media& media_;
  const RecoveryOptions& options_;
  std::vector<std::byte> memory_;
  std::span<std::byte> block_;  ///< in memory_, aligned for direct transfers
};

}  // namespace spillway::storage
