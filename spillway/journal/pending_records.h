// Versions that wait for their record, or whose record waits for a flush.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "spillway/journal/catalog.h"
#include "spillway/journal/flushes.h"
#include "spillway/journal/record_writes.h"

namespace spillway::journal {

/// The steps `first` to `last`.
struct StepRange {
  std::uint64_t first = 0, last = 0;
  [[nodiscard]] bool has(std::uint64_t step) const noexcept { return first <= step && step <= last; }
};
/// Steps of which a snapshot may have a record; none: no step.
using Recordable = std::optional<StepRange>;

/// A snapshot waits until a flush covers its pieces and its step is recordable, a gradient until a slot is free. A
/// recorded snapshot waits until its record and its step are durable. Not thread safe.
class PendingRecords {
 public:
  /// All references outlive it.
  PendingRecords(const JournalSpec& spec, const MetadataLayout& layout, Catalog& catalog, Flushes& flushes,
                 RecordWrites& writes)
      : spec_(spec),
        layout_(layout),
        catalog_(catalog),
        flushes_(flushes),
        writes_(writes),
        listed_(spec.chunks.size()) {}

  /// A snapshot of the chunk is written, and in the catalog.
  void add_snapshot(std::uint32_t chunk);
  /// A gradient is written. It has a record under way from here on: whoever drops it meanwhile leaves it to
  /// place_gradients().
  void add_gradient(std::uint32_t gradient, Version* version);
  [[nodiscard]] bool has_gradients() const noexcept { return !gradients_.empty(); }

  /// Queues records of gradients for which a slot is free.
  void place_gradients();
  /// Queues records of snapshots that a flush covers.
  void begin_snapshots(const Recordable& recordable);
  /// Queues a record of the snapshot that each chunk goes back to.
  void begin_all();
  /// Trusts snapshots whose record and step are durable.
  void settle(const std::optional<std::uint64_t>& durable);
  /// Asks for flushes of all that could go on with one.
  void want(const Recordable& recordable);

 private:
  void begin_snapshot(std::uint32_t chunk, const Recordable& recordable);

  const JournalSpec& spec_;
  const MetadataLayout& layout_;
  Catalog& catalog_;
  Flushes& flushes_;
  RecordWrites& writes_;
  std::vector<std::uint32_t> unrecorded_;                      ///< chunks with written snapshots
  std::vector<bool> listed_;                                   ///< per chunk: it is in unrecorded_
  std::vector<std::uint32_t> recording_;                       ///< chunks with a snapshot on its way
  std::vector<std::pair<std::uint32_t, Version*>> gradients_;  ///< that wait for a slot
};

}  // namespace spillway::journal
