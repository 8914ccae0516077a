// Commits, checkpoints and volumes that a run leaves.
#include "spillway/base/error.h"
#include "spillway/execute/manifest_file.h"
#include "spillway/execute/run.h"

namespace spillway::execute {

void Run::commit(std::string_view payload) {
  if (saving_->durable()) step_->commit(payload);
}

void Run::flush() {
  step_->settle();
  wait_durable();
}

void Run::save_manifest(const std::filesystem::path& directory) {
  if (!saving_->durable()) {
    throw Error(ErrorCode::bad_input,
                "this run keeps nothing on storage paths that a manifest could name; its "
                "checkpoints stand alone (save_state)");
  }
  step_->commit_unless_done();
  step_->settle();
  const auto bytes = saving_->checkpoint(step_->protocol().position().applied);
  try {
    write_manifest(directory, bytes, plan_.ownership.world());
  } catch (...) {
    saving_->release(bytes);
    throw;
  }
}

void Run::release_manifest(std::span<const std::byte> manifest) {
  if (saving_->durable()) saving_->release(manifest);
}

std::vector<std::byte> Run::leave(std::string_view payload) {
  if (!saving_->durable()) {
    step_->settle();
    return saving_->leave(step_->protocol().commitment(), payload);
  }
  step_->commit_unless_done(payload);
  step_->settle();
  if (plan_.plan.durability == plan::Durability::checkpoint) {
    saving_->release(saving_->checkpoint(step_->protocol().position().applied));
  }
  saving_->wait_durable();
  return {};
}

}  // namespace spillway::execute
