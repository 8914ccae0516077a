// The objects that the journal of a run has: snapshots of its chunks, and gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/journal/journal_spec.h"
#include "spillway/journal/record_check.h"
#include "spillway/plan/description.h"
#include "spillway/state/layout.h"
#include "spillway/state/ownership.h"

namespace spillway::execute {

/// The journal's numbers for the gradients of a run: those of dense chunks in their order, then parts of the rows.
class GradientIds {
 public:
  GradientIds(const plan::Description& description, const state::Layout& layout);

  [[nodiscard]] std::uint32_t find_chunk(std::size_t chunk) const { return of_chunk_.at(chunk); }
  [[nodiscard]] std::uint32_t find_sparse(std::size_t part) const {
    return first_sparse_ + static_cast<std::uint32_t>(part);
  }
  /// In the largest step.
  [[nodiscard]] std::uint32_t count() const noexcept {
    return first_sparse_ + static_cast<std::uint32_t>(sparse_parts_);
  }

 private:
  std::vector<std::uint32_t> of_chunk_;  ///< ~0: has no dense gradient
  std::uint32_t first_sparse_ = 0;
  std::size_t sparse_parts_ = 0;
};

/// Adds the chunks and the gradients of such a journal.
void list_objects(const plan::Description& description, const state::Layout& layout, const state::Ownership& ownership,
                  journal::JournalSpec& out);

/// The objects of a run's journal follow from the model and the chunks that this process has, so that another placement
/// finds what was written. They have the same numbers in every world: a chunk of another process is elsewhere.
[[nodiscard]] journal::JournalSpec journal_spec(const plan::Description& description, const state::Layout& layout,
                                                const state::Ownership& ownership, plan::Durability durability,
                                                const std::string& run, std::size_t paths);
/// The journal's objects in a world of one.
[[nodiscard]] journal::JournalSpec journal_spec(const plan::Description& description, const state::Layout& layout,
                                                plan::Durability durability, const std::string& run, std::size_t paths);

/// The bytes of each object of such a journal.
[[nodiscard]] journal::ObjectSizes object_sizes(const plan::Description& description, const state::Layout& layout,
                                                const journal::JournalSpec& spec);

}  // namespace spillway::execute
