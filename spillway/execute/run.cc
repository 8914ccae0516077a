#include "spillway/execute/run.h"

#include "spillway/base/error.h"
#include "spillway/execute/manifest_file.h"
#include "spillway/execute/restore.h"

namespace spillway::execute {

Run::Run(const RunPlan& plan, const VolumeSettings& volumes, unsigned threads, const OpenOptions& open_options)
    : plan_(plan), storage_(plan_, volumes) {
  const Clocked clocked(recovery_.seconds);
  if (!open(open_options)) return;
  map_memory(threads);
  start_storage();
  make_parts();
  if (recovery_.has_step) Restore(plan_, *resources_, storage_, *tiers_).run(recovery_);
  const StepPosition at{.step = recovery_.step, .applied = recovery_.applied, .updates = recovery_.updates};
  step_ = std::make_unique<Step>(Step::Parts{plan_, *resources_, storage_.store(), *tiers_, *tensors_, *saving_}, at,
                                 recovery_.has_step);
  storage_.started();
}

/// False when only what is found was to be opened, and nothing was.
bool Run::open(const OpenOptions& open_options) {
  const bool on_paths = plan_.plan.path_bytes > 0;
  if (!on_paths && open_options.checkpoint) {
    throw Error(ErrorCode::bad_input, text(open_options.checkpoint->string(),
                                           " lies on storage paths, and this plan keeps nothing there; give ",
                                           "the placement and durability that the run was started with"));
  }
  if (!on_paths && open_options.reopen) storage_.require_nothing_there();
  if (!on_paths) return !open_options.if_found;
  double seconds = 0;
  bool out = false;
  {
    const Clocked clocked(seconds);
    out = storage_.open(open_options, recovery_);
  }
  recovery_.phases.opening = seconds - recovery_.phases.records;
  return out;
}

void Run::start_storage() {
  if (plan_.plan.path_bytes == 0) return;
  const Clocked clocked(recovery_.phases.opening);
  storage_.start(recovery_);
}

void Run::map_memory(unsigned threads) {
  const Clocked clocked(recovery_.phases.memory);
  resources_ = std::make_unique<Resources>(plan_, threads, storage_.paths());
}

void Run::make_parts() {
  const auto rule = plan_.description.rule();
  tiers_ = std::make_unique<Tiers>(plan_.plan, plan_.layout, rule, resources_->arenas(), storage_.store(),
                                   resources_->device());
  tensors_ = std::make_unique<Tensors>(plan_.description, plan_.layout, *tiers_, resources_->scratch(),
                                       recovery_.has_step, plan_.network);
  const auto committed = recovery_.has_step ? std::optional(recovery_.step) : std::nullopt;
  saving_ = std::make_unique<Saving>(plan_, storage_, *tiers_, resources_->scratch(), committed);
}

// ---- weights and states

void Run::load_weights(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& names) {
  step_->load();
  tensors_->load_weights(checkpoint, names);
}

void Run::store(std::size_t tensor, std::uint64_t first, std::span<const float> values) {
  step_->load();
  tensors_->store(tensor, first, values);
}

void Run::measure(std::size_t tensor, std::uint64_t first, std::span<const float> values) {
  tensors_->measure(tensor, first, values);
}

void Run::fetch(std::size_t tensor, std::uint64_t first, std::span<float> values) {
  step_->settle_updates();
  tensors_->fetch(tensor, first, values);
}

void Run::save_weights(const std::filesystem::path& directory, const state::SaveOptions& options) {
  step_->settle_updates();
  tensors_->save_weights(directory, options);
}

void Run::save_state(const std::filesystem::path& directory) {
  step_->settle_updates();
  tensors_->save_state(directory);
}

state::StateFormat Run::load_state(const std::filesystem::path& directory, const std::filesystem::path& weights,
                                   std::int64_t updates, const std::map<std::string, std::string>& names) {
  step_->load();
  const auto format = tensors_->load_state(directory, weights, names);
  step_->protocol().load_updates(updates);
  return format;
}

Recovery Run::redeal(const VolumeSettings& volumes, unsigned threads, const RedealOptions& options) {
  step_->load();
  auto out = Redeal(plan_, volumes, threads, options, resources_->scratch()).run(tensors_->chunks());
  step_->protocol().load_updates(out.updates);
  step_->protocol().load_step(out.step);
  return out;
}

void Run::set_step(std::uint64_t step) {
  step_->load();
  step_->protocol().load_step(step);
}

}  // namespace spillway::execute
