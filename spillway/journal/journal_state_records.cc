#include <new>

#include "spillway/base/error.h"
#include "spillway/journal/journal_state.h"
#include "spillway/journal/record.h"

namespace spillway::journal {
namespace {

/// Records in flight at a time; each is written kCopies times.
constexpr std::uint32_t kMostRecords = 32;

}  // namespace

MetadataBuffer::MetadataBuffer(Bytes bytes)
    : bytes_(bytes), memory_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kMetadataAlignment}))) {}

void MetadataBuffer::Free::operator()(std::byte* memory) const noexcept {
  ::operator delete (memory, std::align_val_t{kMetadataAlignment});
}

/// The copies go to different paths as long as two can be written.
std::uint32_t JournalState::choose_path(ObjectKind kind, std::uint32_t object, std::uint32_t copy) const {
  std::uint32_t path = layout_.home(kind, object);
  for (std::uint32_t left = copy + 1;; path = (path + 1) % spec_.paths) {
    if ((usable_ >> path & 1) != 0 && --left == 0) return path;
  }
}

void JournalState::hold(const RecordTask& task, std::uint32_t copy, bool held) {
  // Gradients come all the time; a flush that waited for their records might never start.
  if (task.kind != ObjectKind::snapshot) return;
  if (held) {
    flushes_.hold(task.paths[copy]);
  } else {
    flushes_.let_go(task.paths[copy]);
  }
}

void JournalState::queue_record(ObjectKind kind, std::uint32_t object, Version* version) {
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

void JournalState::issue_records() {
  while (!queue_.empty() && records_in_flight_ < kMostRecords) {
    RecordTask* task = queue_.front();
    queue_.pop_front();
    ++records_in_flight_;
    if (idle_buffers_.empty()) idle_buffers_.push_back(std::make_unique<MetadataBuffer>(layout_.record_bytes()));
    task->buffer = std::move(idle_buffers_.back());
    idle_buffers_.pop_back();
    const Version& v = *task->version;
    encode({task->kind, task->object, v.generation, v.version, v.slot}, v.pieces, layout_.identity(),
           task->buffer->bytes());
    for (std::uint32_t copy = 0; copy < kCopies; ++copy) issue_copy(task, copy);
  }
}

void JournalState::issue_copy(RecordTask* task, std::uint32_t copy) {
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
  actions.push_back(std::move(action));
}

void JournalState::write_ended(RecordTask* task, std::uint32_t copy, std::uint32_t path,
                               const std::exception_ptr& error) {
  if (failed_) return;
  if (error) lose_path(path, error);
  if (failed_) return;
  if (task == nullptr) {
    commit_written(path, error);
  } else if (error) {
    issue_copy(task, copy);
  } else {
    hold(*task, copy, false);
    task->done |= PathSet{1} << path;
    if (--task->open == 0) record_written(task);
  }
  pump();
}

void JournalState::record_written(RecordTask* task) {
  Version* version = task->version;
  version->recorded = true;
  version->record_paths = task->done;
  version->record_tick = flushes_.written(task->done);
  if (urgent()) flushes_.want(version->record_paths, version->record_tick);
  if (task->kind == ObjectKind::gradient && !jobs_.empty()) {
    Job& job = jobs_.front();
    const bool counts = job.kind == Kind::redo && version->version == job.commit.step && version->live;
    if (counts && job.commit.used(task->object)) --job.missing;
  }
  catalog_.record_ended(task->kind, task->object, version);
  idle_buffers_.push_back(std::move(task->buffer));
  idle_tasks_.push_back(task);
  --records_in_flight_;
}

void JournalState::lose_path(std::uint32_t path, const std::exception_ptr& error) {
  if ((usable_ >> path & 1) == 0) return;
  usable_ &= ~(PathSet{1} << path);
  Action action;
  action.kind = Action::Kind::path_failed;
  action.path = path;
  action.error = error;
  actions.push_back(std::move(action));
  if (usable_ == 0) fail(error);
}

void JournalState::path_failed(std::uint32_t path, std::exception_ptr error) {
  if (failed_) return;
  lose_path(path, error);
  pump();
}

void JournalState::start_syncs() {
  for (std::uint32_t path = 0; path < spec_.paths; ++path) {
    if (!flushes_.start(path)) continue;
    Action action;
    action.kind = Action::Kind::sync;
    action.path = path;
    actions.push_back(std::move(action));
  }
}

void JournalState::sync_ended(std::uint32_t path, const std::exception_ptr& error) {
  if (failed_) return;
  // What a failed flush should have covered may be lost, whoever is told that it was written.
  if (error) return fail(error);
  flushes_.finish(path);
  scan();
  pump();
}

void JournalState::fail(const std::exception_ptr& error) {
  failed_ = error;
  Action action;
  action.kind = Action::Kind::failed;
  action.error = error;
  actions.push_back(std::move(action));
  if (!goal_) return;
  Action answer;
  answer.kind = Action::Kind::checkpoint;
  answer.error = error;
  answer.done = std::move(goal_->done);
  goal_.reset();
  actions.push_back(std::move(answer));
}

}  // namespace spillway::journal
