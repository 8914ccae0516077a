// Records on their way to their slots.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "spillway/journal/action.h"

namespace spillway::journal {

/// Writes each record kCopies times, on different paths as long as two can be written. Not thread safe.
class RecordWrites {
 public:
  /// All references outlive it. `usable`: paths that can be written, at least one.
  RecordWrites(const JournalSpec& spec, const MetadataLayout& layout, const PathSet& usable, Flushes& flushes,
               Actions& actions)
      : spec_(spec), layout_(layout), usable_(usable), flushes_(flushes), actions_(actions) {}

  void queue(ObjectKind kind, std::uint32_t object, Version* version);
  /// Begins to write queued records, as many as may be in flight.
  void issue();
  /// Writes one copy, on another path where its own has failed.
  void write_copy(RecordTask* task, std::uint32_t copy);
  /// A path has one copy. Whether all are written: the version has its record then, and the task is for end().
  [[nodiscard]] bool has_all(RecordTask* task, std::uint32_t copy, std::uint32_t path);
  /// The task may take another record.
  void end(RecordTask* task);

 private:
  [[nodiscard]] std::uint32_t choose_path(ObjectKind kind, std::uint32_t object, std::uint32_t copy) const;
  void hold(const RecordTask& task, std::uint32_t copy, bool held);

  const JournalSpec& spec_;
  const MetadataLayout& layout_;
  const PathSet& usable_;
  Flushes& flushes_;
  Actions& actions_;
  std::deque<RecordTask*> queue_;
  std::vector<std::unique_ptr<RecordTask>> tasks_;
  std::vector<RecordTask*> idle_tasks_;
  std::vector<std::unique_ptr<MetadataBuffer>> idle_buffers_;
  std::uint32_t in_flight_ = 0;
};

}  // namespace spillway::journal
