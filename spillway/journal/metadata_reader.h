// Walks over the metadata slots of all paths.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "spillway/journal/recovery.h"

namespace spillway::journal {

/// Reads many slots at a time. A slot that the drive cannot give is damaged, and so is one that holds what the run
/// cannot have; `damage` lists what was not whole.
class MetadataReader {
 public:
  /// All references must outlive it.
  MetadataReader(const JournalSpec& spec, Media& media, const RecoveryOptions& options);

  /// Calls `found` with every whole commit. A commit that was written for another slot is damage.
  void commits(const std::function<void(const Commit&, std::uint32_t slot, std::uint32_t path)>& found);
  /// Calls `found` with every whole record of a kind.
  void records(ObjectKind kind,
               const std::function<void(const RecordHead&, const std::vector<Piece>&, std::uint32_t slot)>& found);

  [[nodiscard]] const MetadataLayout& layout() const noexcept { return layout_; }
  /// Whether a path holds something in a slot for commits, or cannot give it, that is no whole commit: the slot does
  /// not show that the path lacks a commit.
  [[nodiscard]] bool is_unclear(std::uint32_t path, std::uint32_t slot) const;
  [[nodiscard]] std::string name(ObjectKind kind, std::uint32_t object) const;
  /// "path 0 at byte 4096 and path 1 at byte 8192 of the metadata": where an object's records are written.
  [[nodiscard]] std::string places_of(ObjectKind kind, std::uint32_t object) const;

  std::vector<Damage> damage;
  std::uint64_t foreign = 0;
  std::uint64_t written = 0;  ///< bit p: after commits(), a slot for commits of path p was written once
  bool recorded = false;      ///< after records(), a slot for records was
  std::string unread;         ///< after commits(): why a path gives neither copy of a slot for commits; empty: all do

 private:
  using Slot = std::function<void(Bytes offset, std::span<const std::byte> bytes)>;
  /// Calls `slot` for `count` slots of `size` bytes from `offset` on, with an empty span for one that could not be
  /// read.
  void walk(std::uint32_t path, Bytes offset, Bytes size, Bytes count, const Slot& slot);
  void walk_run(std::uint32_t path, Bytes offset, Bytes size, Bytes count, const Slot& slot);
  /// A slot that was walked over, and what should be there.
  struct Walked {
    std::uint32_t path = 0;
    Bytes offset = 0, size = 0;
    std::span<const std::byte> bytes;  ///< empty: it could not be read
    const std::function<std::string()>& what;
  };
  bool whole(SlotState state, const Walked& slot, const std::string& objection);
  void check_padding(const Walked& slot, Bytes used);
  /// `slot`: that the record was found in.
  [[nodiscard]] std::string objection(SlotState state, const RecordHead& head, const std::vector<Piece>& pieces,
                                      std::uint32_t slot) const;

  const JournalSpec& spec_;
  MetadataLayout layout_;
  std::uint32_t paths_;
  Media& media_;
  const RecoveryOptions& options_;
  std::vector<std::byte> memory_;
  std::span<std::byte> block_;  ///< in memory_, aligned for direct transfers
  std::string why_unreadable_;  ///< the last read that failed
  std::vector<std::pair<std::uint32_t, std::uint32_t>>
      unclear_slots_;  ///< path and slot, of commits that are not whole
};

}  // namespace spillway::journal
