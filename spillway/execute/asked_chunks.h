// Chunks that the passes of an instance ask for, and chunks whose updates have waited for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/execute/update_work.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {

class AskedChunks {
 public:
  /// None is asked for.
  void resize(std::size_t chunks);
  /// An instance begins with the updates that have gradients, and one without passes has all that have waited.
  /// `previous`: of the instance before.
  void begin(const plan::Schedule& schedule, const plan::StepFacts& facts, const AskedChunks& previous,
             UpdateWork& work);
  /// A forward pass asks for the chunk.
  void ask(const plan::Schedule& schedule, plan::Index chunk, UpdateWork& work);

  /// A pass has asked for the chunk.
  [[nodiscard]] bool is_asked(plan::Index chunk) const { return asked_[chunk] != 0; }
  /// A pass of the step whose update is pending had asked for it.
  [[nodiscard]] bool was_asked(plan::Index chunk) const { return before_[chunk] != 0; }
  /// Its updates, which have waited, are done in this instance.
  [[nodiscard]] bool is_due(plan::Index chunk) const { return due_[chunk] != 0; }
  /// True if a pass of the instance begins the task, and lets it go.
  [[nodiscard]] bool holds(const plan::Task& task, const plan::StepFacts& facts) const;

 private:
  std::vector<std::uint8_t> asked_, before_, due_;  ///< by chunk
};

}  // namespace spillway::execute
