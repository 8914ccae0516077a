#include "spillway/journal/record_writes.h"

#include <utility>

#include "spillway/journal/record.h"

namespace spillway::journal {
namespace {

/// Records in flight at a time; each is written kCopies times.
constexpr std::uint32_t kMostRecords = 32;

}  // namespace

/// The copies go to different paths as long as two can be written.
std::uint32_t RecordWrites::choose_path(ObjectKind kind, std::uint32_t object, std::uint32_t copy) const {
  std::uint32_t path = layout_.home(kind, object);
  for (std::uint32_t left = copy + 1;; path = (path + 1) % spec_.paths) {
    if ((usable_ >> path & 1) != 0 && --left == 0) return path;
  }
}

void RecordWrites::hold(const RecordTask& task, std::uint32_t copy, bool held) {
  // Gradients come all the time; a flush that waited for their records might never start.
  if (task.kind != ObjectKind::snapshot) return;
  if (held) {
    flushes_.hold(task.paths[copy]);
  } else {
    flushes_.let_go(task.paths[copy]);
  }
}

void RecordWrites::queue(ObjectKind kind, std::uint32_t object, Version* version) {
  if (idle_tasks_.empty()) idle_tasks_.push_back(tasks_.emplace_back(std::make_unique<RecordTask>()).get());
  RecordTask* task = idle_tasks_.back();
  idle_tasks_.pop_back();
  task->kind = kind;
  task->object = object;
  task->version = version;
  task->open = kCopies;
  task->done = 0;
  ++version->writing;
  for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
    task->paths[copy] = choose_path(kind, object, copy);
    hold(*task, copy, true);
  }
  queue_.push_back(task);
}

void RecordWrites::issue() {
  while (!queue_.empty() && in_flight_ < kMostRecords) {
    RecordTask* task = queue_.front();
    queue_.pop_front();
    ++in_flight_;
    if (idle_buffers_.empty()) idle_buffers_.push_back(std::make_unique<MetadataBuffer>(layout_.record_bytes()));
    task->buffer = std::move(idle_buffers_.back());
    idle_buffers_.pop_back();
    const Version& v = *task->version;
    encode({task->kind, task->object, v.generation, v.version, v.slot}, v.pieces, layout_.identity(),
           task->buffer->bytes());
    for (std::uint32_t copy = 0; copy < kCopies; ++copy) write_copy(task, copy);
  }
}

void RecordWrites::write_copy(RecordTask* task, std::uint32_t copy) {
  if ((usable_ >> task->paths[copy] & 1) == 0) {
    hold(*task, copy, false);
    task->paths[copy] = choose_path(task->kind, task->object, copy);
    hold(*task, copy, true);
  }
  Action action;
  action.kind = Action::Kind::write;
  action.path = task->paths[copy];
  action.offset = layout_.record(task->kind, task->object, copy, task->version->slot);
  action.bytes = task->buffer->bytes();
  action.task = task;
  action.copy = copy;
  actions_.push_back(std::move(action));
}

bool RecordWrites::has_all(RecordTask* task, std::uint32_t copy, std::uint32_t path) {
  hold(*task, copy, false);
  task->done |= PathSet{1} << path;
  if (--task->open != 0) return false;
  Version& version = *task->version;
  version.recorded = true;
  version.record_paths = task->done;
  version.record_tick = flushes_.written(task->done);
  return true;
}

void RecordWrites::end(RecordTask* task) {
  idle_buffers_.push_back(std::move(task->buffer));
  idle_tasks_.push_back(task);
  --in_flight_;
}

}  // namespace spillway::journal
