// The parts that a journal's decisions are made of, over two chunks with a gradient each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/journal/commit_jobs.h"

namespace spillway::journal::testing {

struct JournalParts {
  explicit JournalParts(std::uint32_t paths = 2, std::uint32_t world = 1)
      : spec{.run = "run",
             .paths = paths,
             .chunks = {{}, {}},
             .gradients = {{1, 0, 1}, {1, 1, 1}},
             .rank = 0,
             .world = world,
             .line = world > 1 ? 7U : 0U} {}
  JournalParts(const JournalParts&) = delete;
  JournalParts& operator=(const JournalParts&) = delete;

  static std::vector<Piece> at(std::uint32_t place) { return {{{0, place}, 4096, 0, place}}; }
  Version* make_snapshot(std::uint32_t chunk, std::uint64_t version) {
    Version* out = catalog.make(version, 1, at(chunk));
    out->tick = flushes.written(out->paths);
    catalog.chunks[chunk].written.push_back(out);
    pending.add_snapshot(chunk);
    return out;
  }
  Version* make_gradient(std::uint32_t gradient, std::uint64_t version) {
    Version* out = catalog.make(version, 1, at(10 + gradient));
    out->tick = flushes.written(out->paths);
    catalog.gradients[gradient].held.push_back(out);
    pending.add_gradient(gradient, out);
    return out;
  }
  /// Ends every flush that is wanted.
  void flush() {
    for (std::uint32_t path = 0; path < spec.paths; ++path) {
      if (flushes.start(path)) flushes.finish(path);
    }
  }
  /// The paths of the writes that were asked for. Those of records end well.
  std::vector<std::uint32_t> end_records() {
    std::vector<std::uint32_t> out;
    while (!actions.empty()) {
      const Action action = actions.front();
      actions.pop_front();
      if (action.kind != Action::Kind::write) continue;
      out.push_back(action.path);
      if (action.task == nullptr || !writes.has_all(action.task, action.copy, action.path)) continue;
      catalog.record_ended(action.task->kind, action.task->object, action.task->version);
      writes.end(action.task);
    }
    return out;
  }

  JournalSpec spec;
  MetadataLayout layout{spec};
  PathSet usable = (PathSet{1} << spec.paths) - 1;
  Actions actions;
  Catalog catalog{spec};
  Flushes flushes{spec.paths};
  RecordWrites writes{spec, layout, usable, flushes, actions};
  PendingRecords pending{spec, layout, catalog, flushes, writes};
  CommitJobs jobs{spec, layout, usable, catalog, flushes, pending, actions};
};

}  // namespace spillway::journal::testing
