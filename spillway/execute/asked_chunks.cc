#include "spillway/execute/asked_chunks.h"

#include <algorithm>

namespace spillway::execute {

using plan::Index;

void AskedChunks::resize(std::size_t chunks) {
  for (auto* list : {&asked_, &before_, &due_}) list->assign(chunks, 0);
}

void AskedChunks::begin(const plan::Schedule& schedule, const plan::StepFacts& facts, const AskedChunks& previous,
                        UpdateWork& work) {
  std::ranges::fill(asked_, std::uint8_t{0});
  for (Index c = 0; c < due_.size(); ++c) {
    before_[c] = facts.update ? previous.asked_[c] : 0;
    const bool begins = schedule.update_waits(c) && (!facts.passes || was_asked(c));
    due_[c] = begins && work.take_updates(c, was_asked(c)) ? 1 : 0;
  }
}

void AskedChunks::ask(const plan::Schedule& schedule, Index chunk, UpdateWork& work) {
  asked_[chunk] = 1;
  if (schedule.update_waits(chunk) && !is_due(chunk)) due_[chunk] = work.take_updates(chunk, false) ? 1 : 0;
}

bool AskedChunks::holds(const plan::Task& task, const plan::StepFacts& facts) const {
  if (!facts.passes) return false;
  const bool ends_update = is_path(task.lane) && !is_read(task.lane);  // follows it
  if (task.when.waits()) return !ends_update && !is_due(task.what.index);
  return task.when.only == plan::OnlyIf::asked && task.when.phase == plan::Phase::forward;
}

}  // namespace spillway::execute
