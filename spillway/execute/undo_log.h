// The old versions of chunks that were updated before their step was decided.
//
// A chunk's bytes, weight then state, are copied into the buffer that the plan has laid out for them, and back when
// what was applied turns out not to be what the step decided. Bytes, whatever they mean: any form of state, any
// optimizer.
#pragma once

#include <cstddef>
#include <span>

#include "spillway/execute/thread_pool.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {

class UndoLog {
 public:
  /// Logs the chunks that the schedule updates early. Both must outlive it.
  UndoLog(const plan::Schedule& schedule, std::byte* arena) noexcept : schedule_(schedule), arena_(arena) {}

  /// A chunk is copied in slices, which several threads may take.
  [[nodiscard]] std::size_t slices(plan::Index chunk) const noexcept;
  void save(plan::Index chunk, std::size_t slice) const noexcept;
  /// Puts the saved versions of these chunks back; nothing else may use them meanwhile.
  void restore(std::span<const plan::Index> chunks, ThreadPool& thread_pool) const;

 private:
  /// `size` bytes at `live`, whose old version is at `saved`.
  struct Part {
    std::byte* live = nullptr;
    std::byte* saved = nullptr;
    Bytes size = 0;
  };
  [[nodiscard]] std::byte* at(plan::Index buffer) const noexcept;
  /// The bytes of a slice in the weight (part 0) or the state (part 1); may be none.
  [[nodiscard]] Part part(plan::Index chunk, std::size_t slice, int which) const noexcept;

  const plan::Schedule& schedule_;
  std::byte* const arena_;
};

}  // namespace spillway::execute
