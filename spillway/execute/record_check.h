// Whether what records and manifests say of a run's objects can be so: their bytes are input like any other, and what
// they say of lengths and places is used to read into memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "spillway/execute/books.h"
#include "spillway/journal/manifest.h"
#include "spillway/plan/description.h"
#include "spillway/state/layout.h"
#include "spillway/storage/path.h"

namespace spillway::execute {

class RecordCheck {
 public:
  /// `paths`: of the run, open. All references must outlive it.
  RecordCheck(const plan::Description& description, const state::Layout& layout, const journal::JournalSpec& spec,
              std::span<storage::Path* const> paths);

  /// What is wrong with the pieces of an object: a path or a place that the run does not have, or lengths that are not
  /// those of its parts, piece by piece. Empty: nothing is.
  [[nodiscard]] std::string objection(journal::ObjectKind kind, std::uint32_t object,
                                      std::span<const journal::Piece> pieces) const;
  /// The same of a checkpoint: of its commit, and of one snapshot of each chunk, of the checkpoint's step, at places of
  /// its own.
  [[nodiscard]] std::string objection(const journal::Manifest& manifest) const;

 private:
  [[nodiscard]] std::string objection(const journal::Piece& piece) const;
  [[nodiscard]] std::vector<Bytes> parts_of(journal::ObjectKind kind, std::uint32_t object) const;
  [[nodiscard]] std::string objection(const journal::Manifest& manifest, const journal::StoredObject& snapshot) const;

  const plan::Description& description_;
  const state::Layout& layout_;
  const journal::JournalSpec& spec_;
  const std::uint32_t first_rows_;  ///< the first gradient that is a part of an embedding's rows
  std::vector<Bytes> capacities_;   ///< by path
};

}  // namespace spillway::execute
