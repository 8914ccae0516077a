// A checkpoint that was asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "spillway/journal/action.h"
#include "spillway/journal/catalog.h"
#include "spillway/journal/commit.h"

namespace spillway::journal {

/// The step of a commit, to be durable in snapshots alone. Not thread safe.
class CheckpointGoal {
 public:
  /// All references outlive it.
  CheckpointGoal(const MetadataLayout& layout, const Catalog& catalog) : layout_(layout), catalog_(catalog) {}

  void ask(Commit commit, CheckpointDone done) { asked_ = {std::move(commit), std::move(done)}; }
  [[nodiscard]] bool is_asked() const noexcept { return asked_.has_value(); }
  [[nodiscard]] const Commit& commit() const { return asked_->commit; }
  /// Its manifest, once the step is durable and the trusted snapshot of every chunk is of it; null before.
  [[nodiscard]] std::shared_ptr<Manifest> make_manifest(const std::optional<std::uint64_t>& durable) const;
  /// The one to answer. Another checkpoint may be asked for.
  [[nodiscard]] CheckpointDone end() { return std::exchange(asked_, std::nullopt)->done; }

 private:
  struct Asked {
    Commit commit;
    CheckpointDone done;
  };

  const MetadataLayout& layout_;
  const Catalog& catalog_;
  std::optional<Asked> asked_;
};

/// Counts chunks that have a snapshot of a step, written at least. Not thread safe.
class GatheredChunks {
 public:
  explicit GatheredChunks(const Catalog& catalog) : catalog_(catalog) {}

  /// Another step is asked about, or snapshots may have gone.
  void restart() noexcept { count_ = 0; }
  /// True if all chunks had one when they were last counted.
  [[nodiscard]] bool has_all() const noexcept { return count_ == catalog_.chunks.size(); }
  /// True if all have one of the step of `commit`.
  [[nodiscard]] bool count(const Commit& commit);

 private:
  const Catalog& catalog_;
  std::size_t count_ = 0;  ///< the first chunks, which have one
};

}  // namespace spillway::journal
