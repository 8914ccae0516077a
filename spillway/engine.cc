#include "spillway/engine.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>

#include "spillway/execute/counters.h"
#include "spillway/execute/element.h"
#include "spillway/execute/read_back.h"
#include "spillway/execute/run.h"
#include "spillway/execute/trace.h"
#include "spillway/plan/fits.h"
#include "spillway/state/checkpoint.h"
#include "spillway/state/file.h"
#include "spillway/storage/superblock.h"

namespace spillway {
namespace {

using plan::kNone;
using plan::VisitKind;
using state::BlockRole;
using state::ComputeType;

/// Steps in a row without clipping after which the next one is expected to need none.
constexpr unsigned kCalmSteps = 3;

/// The budget with what each volume takes for itself.
plan::Budget checked(const plan::Description& description, const state::Layout& layout, const Settings& settings) {
  if (description.widens() && description.computes() != ComputeType::fp32) {
    throw Error(ErrorCode::bad_input, text("compute_dtype ", state::name_of(description.computes()),
                                           " with weight_dtype ", state::name_of(description.type),
                                           ": weights are computed with as they are kept, or in fp32; give only one"));
  }
  auto out = settings.budget;
  const auto paths = settings.storage.places.size();
  if (out.paths.size() != paths) {
    throw Error(ErrorCode::bad_input,
                text("the budget names ", out.paths.size(), " storage paths, the settings ", paths, " places"));
  }
  if (paths == 0) return out;
  const auto spec = execute::journal_spec(description, layout, plan::Durability::step, settings.run, paths);
  out.superblock = storage::kSuperblockExtent;
  out.records = journal::MetadataLayout(spec).bytes();
  return out;
}

std::size_t find_block(const state::Layout& layout, BlockRole role) {
  for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
    if (layout.blocks()[b].role == role) return b;
  }
  return kNone;
}

std::string in_words(const execute::Found& found) {
  if (!found.found) return {};
  auto out = text("recovered step ", found.step, " from the storage paths: ", found.chunks, " chunks");
  if (found.replayed > 0) {
    out += text(", ", found.replayed, " of them updated again from their gradients, up to ", found.steps,
                found.steps == 1 ? " time" : " times");
  }
  out += text(", in ", std::round(found.seconds * 10) / 10, " s");
  if (!found.damage.empty()) {
    out += text("; ", found.damage.size(), " damaged records were passed over, the first is ", found.damage.front());
  }
  return out;
}

Recovery told(const execute::Found& found) {
  return {.found = found.found,
          .step = found.step,
          .updates = found.updates,
          .payload = found.payload,
          .chunks = found.chunks,
          .replayed = found.replayed,
          .replayed_steps = found.steps,
          .seconds = found.seconds,
          .words = in_words(found),
          .damage = found.damage,
          .phases = {{"memory", found.phases.memory},
                     {"opening", found.phases.opening},
                     {"records", found.phases.records},
                     {"reading", found.phases.reading},
                     {"replay", found.phases.replay}}};
}

}  // namespace

class Engine::Impl {
 public:
  Impl(plan::Description description, Settings settings)
      : description_(std::move(description)),
        settings_(std::move(settings)),
        layout_(description_.layout()),
        budget_(checked(description_, layout_, settings_)),
        plan_(plan::make_plan(description_, layout_, budget_, settings_.rates)),
        embedding_(find_block(layout_, BlockRole::embedding)),
        scaler_(description_.type == ComputeType::fp16) {}

  ~Impl() {
    try {
      close();
    } catch (...) {  // what must not be lost is closed by close()
    }
  }

  Recovery start(const Opening& opening) {
    read_back_.reset();
    running_.reset();
    running_ = std::make_unique<execute::Run>(
        run_plan(), volumes(), settings_.threads,
        execute::Opening{opening.reopen, opening.if_found, opening.at_least, opening.checkpoint,
                         opening.list_pinned ? opening.list_pinned : [&] { return opening.pinned; }});
    const auto found = running_->found();
    if (!running_->started()) running_.reset();
    pending_ = kept_ = false;
    subspaces_read_ = false;
    calm_ = 0;
    scaler_ = execute::LossScaler(description_.type == ComputeType::fp16);
    steps_ = found.updates;
    step_ = found.step;
    applied_ = found.applied;
    committed_ = begun_ = found.found;
    return told(found);
  }

  Recovery read_back(const std::optional<std::filesystem::path>& checkpoint) {
    read_back_ = std::make_unique<execute::ReadBack>(run_plan(), volumes(), settings_.threads, checkpoint);
    return told(read_back_->found());
  }

  [[nodiscard]] Verification verify(const std::vector<std::filesystem::path>& pinned) const {
    const auto verified = execute::verify(run_plan(), volumes(), pinned);
    Verification out{.bytes = verified.bytes, .step = verified.step, .damage = {}};
    for (const auto& it : verified.damage) {
      out.damage.push_back({text("path:", it.path), it.file, it.offset, it.bytes, it.what});
    }
    return out;
  }

  void close() {
    read_back_.reset();
    if (!running_) return;
    const auto run = std::move(running_);
    run->wait_durable();
  }

  void give_up_volumes() const noexcept {
    if (running_) running_->give_up_volumes();
  }

  execute::Run& running() const {
    if (!running_) throw Error(ErrorCode::bad_input, "the engine is not started; call start() first");
    return *running_;
  }

  [[nodiscard]] execute::RunPlan run_plan() const {
    return {description_, layout_, budget_, settings_.rates, plan_, settings_.nodes, settings_.device};
  }
  [[nodiscard]] execute::VolumeSettings volumes() const {
    const auto& storage = settings_.storage;
    execute::VolumeSettings out{.overwrite = storage.overwrite,
                                .erase = storage.erase,
                                .keep = storage.keep,
                                .run = settings_.run,
                                .ring = storage.ring};
    for (const auto& place : storage.places) out.places.push_back({place.path, place.device});
    return out;
  }

  // ---- state ----

  /// What is loaded is part of the first commit.
  void check_loading() {
    subspaces_read_ = false;
    if (!running().journal || !begun_) return;
    throw Error(ErrorCode::bad_input, "this run is durable and has begun; weights and states change by steps alone");
  }

  void load_weights(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& names) {
    check_loading();
    settle_updates();
    running().tensors->load_weights(checkpoint, names);
  }

  void store_tensor(std::size_t tensor, std::uint64_t first, std::span<const float> values) {
    check_loading();
    settle_updates();
    running().tensors->store(tensor, first, values);
  }

  void fetch_tensor(std::size_t tensor, std::uint64_t first, std::span<float> values) {
    if (read_back_) return read_back_->fetch(tensor, first, values);
    settle_updates();
    running().tensors->fetch(tensor, first, values);
  }

  void save_weights(const std::filesystem::path& directory, const state::SaveOptions& options) {
    if (read_back_) return state::save_weights(read_back_->stream(), directory, options);
    settle_updates();
    running().tensors->save_weights(directory, options);
  }

  void save_state(const std::filesystem::path& directory) {
    if (read_back_) return state::save_state(read_back_->stream(), directory);
    settle_updates();
    running().tensors->save_state(directory);
  }

  state::StateFormat load_state(const std::filesystem::path& directory, const std::filesystem::path& weights,
                                std::int64_t step, const std::map<std::string, std::string>& names) {
    check_loading();
    settle_updates();
    const auto found = running().tensors->load_state(directory, weights, names);
    steps_ = step;
    return found;
  }

  // ---- steps ----

  void begin_step(const StepBegin& begin) {
    auto& run = running();
    std::uint64_t tokens = 0;
    for (const auto count : begin.counts) tokens += count;
    check_step(begin, tokens);
    if (begin.update) check_decay(*begin.update);
    if (!begin.training) settle_updates();
    run.tensors->settle();
    if (begin.training) begin_subspaces();
    if (!committed_ && (begin.training || pending_)) commit({});
    if (run.rows) run.rows->begin(begin.ids);
    started_ = run.executor->now();
    stalled_before_ = running().executor->waits().sum();
    training_ = begin.training;
    if (pending_) run.set_update(update_);
    run.gradients->begin(begin.counts.size());
    predict(begin);
    begin_instance({.visits = true, .backward = begin.training, .early = predicted_.has_value()});
  }

  /// What early updates of the step apply; nothing when they cannot be right.
  void predict(const StepBegin& begin) {
    predicted_.reset();
    if (!begin.training || !begin.update || plan_.early_chunks == 0) return;
    const bool clips = begin.update->max_grad_norm > 0;
    if (clips && (!budget_.speculate || calm_ < kCalmSteps)) return;
    predicted_ = update_of(*begin.update, 1 / static_cast<float>(scaler_.scale()), steps_ + 1);
    running().updater->set_early(*predicted_);
  }

  optim::Step update_of(const StepUpdate& update, float scale, std::int64_t step) const {
    auto named = update.others;
    named.emplace("learning_rate", update.learning_rate);
    named.emplace("weight_decay", update.weight_decay);
    auto out = optim::make_step(*description_.optimizer, named);
    out.gradient_scale = scale;
    out.step = step;
    out.seed = description_.seed;
    return out;
  }

  void begin_instance(execute::Mode mode) {
    mode.update = pending_;
    mode.updated = applied_;
    mode.updates = static_cast<std::uint64_t>(steps_);
    mode.step = step_ + 1;
    mode.kept = kept_;
    mode.stored = running().tiers->take_stored();
    pending_ = kept_ = false;
    running().executor->begin(mode);
  }

  /// The projectors that visits go by: those that the last update had.
  void begin_subspaces() {
    auto& run = running();
    if (!run.subspaces->any()) return;
    if (!subspaces_read_) run.restore_subspaces();  // no update is pending after a start or a load
    subspaces_read_ = true;
    run.subspaces->begin(steps_, scaler_.scale());
  }

  void check_decay(const StepUpdate& update) const {
    if (update.weight_decay == 0 || !running().subspaces->any()) return;
    if (description_.optimizer->decoupled_decay) return;
    throw Error(
        ErrorCode::bad_input,
        text("weight_decay ", update.weight_decay, " with method lsp: ", description_.optimizer->name,
             " adds it to the gradient, which is not there for a matrix that learns in a subspace; use adamw or "
             "lion, or weight_decay 0"));
  }

  void check_step(const StepBegin& begin, std::uint64_t tokens) const {
    if (begin.counts.empty() || begin.counts.size() > description_.micro_batches || tokens > description_.tokens) {
      throw Error(ErrorCode::bad_input, text("a step of ", begin.counts.size(), " micro-batches and ", tokens,
                                             " tokens; the plan holds 1 to ", description_.micro_batches,
                                             " micro-batches and ", description_.tokens, " tokens"));
    }
    if (embedding_ != kNone && begin.ids.size() != tokens) {
      throw Error(ErrorCode::bad_input, text(begin.ids.size(), " token ids for ", tokens, " tokens"));
    }
  }

  void embedding_forward(std::byte* output) {
    auto& run = running();
    if (!run.rows) throw Error(ErrorCode::bad_input, "this model has no embedding block");
    if (output == nullptr) output = first_input();
    for (std::size_t i = 0; i < layout_.blocks()[embedding_].chunks; ++i) {
      const auto* visit = run.executor->next();
      const auto& chunk = layout_.chunks()[layout_.blocks()[embedding_].first_chunk + visit->slice];
      run.rows->gather(chunk, at(visit->weights), output, *run.team);
      run.executor->done();
    }
  }

  std::optional<Visit> next_visit() {
    const auto* visit = running().executor->next();
    open_ = visit;
    if (visit == nullptr) return std::nullopt;
    if (visit->grad != kNone) running().gradients->open(*visit);
    return describe(*visit);
  }

  void end_visit() {
    if (open_ == nullptr) throw Error(ErrorCode::bad_input, "end_visit() without a visit");
    if (open_->grad != kNone) running().gradients->close();
    open_ = nullptr;
    running().executor->done();
  }

  const plan::Visit& open_visit(VisitKind kind, const char* call) const {
    if (open_ == nullptr || open_->kind != kind) throw Error(ErrorCode::bad_input, text(call, " outside its visit"));
    return *open_;
  }

  /// Of a block with a gradient.
  void check_learns(const plan::Visit& visit, const char* call) const {
    if (visit.grad != kNone) return;
    throw Error(ErrorCode::bad_input, text(call, " of ", layout_.blocks()[visit.block].name, ", which is frozen"));
  }

  void gradient(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch) const {
    check_learns(open_visit(VisitKind::backward, "gradient()"), "gradient()");
    running().gradients->take(tensor, values, micro_batch);
  }

  void head_gradient(const std::byte* values, std::uint64_t micro_batch) {
    check_learns(open_visit(VisitKind::head_gradient, "head_gradient()"), "head_gradient()");
    running().gradients->take_slice(values, micro_batch);
  }

  void embedding_backward(const std::byte* values) {
    open_visit(VisitKind::embedding_backward, "embedding_backward()");
    running().gradients->take_rows(values);
  }

  StepResult end_step(const StepUpdate& update) {
    auto& run = running();
    if (run.executor->next() != nullptr)
      throw Error(ErrorCode::bad_input, "end_step() before the last visit has ended");
    if (training_) check_decay(update);
    StepResult out;
    if (training_) decide(update, out);
    out.step = steps_;
    out.seconds = run.executor->now() - started_;
    out.stall_seconds = run.executor->waits().sum() - stalled_before_;
    return out;
  }

  /// Norm, finite check and clipping; the update itself waits for the next step or for settle().
  void decide(const StepUpdate& update, StepResult& out) {
    const auto norm = running().gradients->total();
    out.loss_scale = scaler_.scale();
    out.grad_norm = std::sqrt(norm.sum) / out.loss_scale;
    out.skipped = !norm.finite();
    scaler_.ended(norm.finite());
    float clip = 1;
    if (update.max_grad_norm > 0) {  // torch.nn.utils.clip_grad_norm_, in fp32
      clip = std::min(1.0F, static_cast<float>(update.max_grad_norm) / (static_cast<float>(out.grad_norm) + 1e-6F));
    }
    out.clip = clip;
    ++step_;
    committed_ = false;
    skipped_ = out.skipped;
    calm_ = out.skipped || clip != 1 ? 0 : calm_ + 1;
    if (!out.skipped) {
      ++steps_;
      applied_ = step_;
      update_ = update_of(update, clip / static_cast<float>(out.loss_scale), steps_);
      pending_ = true;
    }
    if (running().subspaces->any()) running().subspaces->end(!out.skipped);
    settle_early(out);
  }

  // ---- subspaces

  execute::Subspaces& subspaces(std::size_t tensor, const char* call) const {
    const auto& visit = open_visit(VisitKind::backward, call);
    if (tensor >= layout_.tensors().size() || layout_.tensors()[tensor].block != visit.block) {
      throw Error(ErrorCode::bad_input, text(call, " of tensor number ", tensor, " outside its block's visit"));
    }
    return *running().subspaces;
  }

  void compress(std::size_t tensor, unsigned side, const std::byte* in, std::size_t in_stride, std::size_t tokens,
                std::byte* out) const {
    static_cast<void>(subspaces(tensor, "compress()"));
    running().compress->run(tensor, side, in, in_stride, tokens, out);
  }

  void learn_projectors(std::size_t tensor, std::span<const float> gradient) const {
    auto& to = subspaces(tensor, "learn_projectors()");
    auto& run = running();
    to.check(tensor, gradient.size());
    if (const auto room = to.leave(tensor); !room.empty()) return run.compress->fetch(gradient, room);
    to.learn(tensor, run.compress->here(gradient), run.crew());
  }

  void sample(std::size_t tensor, std::span<const float> seen) const {
    static_cast<void>(subspaces(tensor, "sample()"));
    running().gradients->take_seen(tensor, seen);
  }

  std::vector<Engine::Projectors> projectors() const {
    std::vector<Engine::Projectors> out;
    for (std::size_t t = 0; t < layout_.tensors().size(); ++t) {
      if (layout_.tensors()[t].subspace.rank == 0) continue;
      out.push_back({t, running().subspaces->fits(t), running().subspaces->error(t)});
    }
    return out;
  }

  /// Early updates stay where they applied what was decided; else the old versions are put back.
  void settle_early(StepResult& out) {
    auto& run = running();
    const auto& chunks = run.executor->end_early();
    kept_ = !out.skipped && predicted_ && *predicted_ == update_;
    out.early = chunks.size();
    if (kept_) return;
    run.updater->undo().restore(chunks, *run.team);
    out.undone = chunks.size();
  }

  /// Every pending update and every stored tensor on its tier; the memory above what is resident is free.
  void settle() {
    settle_updates();
    running().tensors->settle();
  }

  void settle_updates() {
    auto& run = running();
    if (pending_) {
      if (!committed_) commit({});  // a snapshot is kept beside the one before until its step is durable
      run.set_update(update_);
      begin_instance({.visits = false, .backward = false});
      if (run.executor->next() != nullptr) throw Error(ErrorCode::internal, "a flush has visits");
    }
    run.executor->drain();
  }

  // ---- durability ----

  void commit(std::string_view payload) {
    auto& run = running();
    committed_ = true;
    if (!run.journal) return;
    if (!begun_) begin_journal();
    begun_ = true;
    auto fields = update_;
    fields.step = steps_;
    run.commit(step_, skipped_, fields, payload);
  }

  /// The first commit of a run: snapshots of what was loaded are what every later step is replayed from.
  void begin_journal() {
    settle();
    if (plan_.durability == plan::Durability::step) running().publish(step_);
  }

  void set_step(std::uint64_t step) {
    check_loading();
    step_ = applied_ = step;
  }

  void save_manifest(const std::filesystem::path& directory) {
    auto& run = running();
    if (!run.journal) {
      throw Error(ErrorCode::bad_input,
                  "this run keeps nothing on storage paths that a manifest could name; its "
                  "checkpoints stand alone (save_state)");
    }
    if (!committed_) commit({});
    settle();
    const auto bytes = run.checkpoint(applied_);
    const auto name = directory / execute::kManifestName;
    try {
      auto file = state::File::create(name, bytes.size(), state::kPrivate);
      file.write(0, bytes);
      file.finish();
    } catch (...) {
      std::error_code ignored;
      std::filesystem::remove(name, ignored);
      run.release(bytes);
      throw;
    }
  }

  void release_manifest(std::span<const std::byte> manifest) {
    if (running().journal) running().release(manifest);
  }

  std::vector<std::byte> leave(std::string_view payload) {
    auto& run = running();
    if (run.journal) {
      if (!committed_) commit(payload);
      settle();
      if (plan_.durability == plan::Durability::checkpoint) run.release(run.checkpoint(applied_));
      run.wait_durable();
      return {};
    }
    settle();
    auto fields = update_;
    fields.step = steps_;
    journal::Commit commit{.step = step_,
                           .previous = applied_,
                           .skipped = skipped_,
                           .update = optim::encode(*description_.optimizer, fields)};
    const auto bytes = std::as_bytes(std::span(payload));
    commit.payload.assign(bytes.begin(), bytes.end());
    const auto places = settings_.storage.places.size();
    return run.leave(execute::journal_spec(description_, layout_, plan::Durability::checkpoint, settings_.run, places),
                     commit);
  }

  void flush() {
    settle();
    running().wait_durable();
  }

  // ---- telling ----

  std::string counters() const { return execute::counters(running(), budget_); }
  std::string silence() const { return execute::silence(running(), budget_); }
  std::string where() const {
    return execute::where(plan_, layout_, description_.rule(), budget_, settings_.nodes, running().arena.span());
  }
  std::string timeline() const {
    return execute::trace(plan_, layout_, running_ ? running_->executor->last_times() : std::vector<execute::Times>{});
  }

  device::Logits logits(std::byte* values, std::uint64_t tokens, std::uint64_t rows, std::uint64_t first_row,
                        const std::int64_t* labels) const {
    return {execute::element_of(description_.computes()), values, tokens, rows, first_row, labels};
  }

  [[nodiscard]] const execute::LossScaler::State& loss_scale() const { return scaler_.state(); }
  void set_loss_scale(const execute::LossScaler::State& state) { scaler_.restore(state); }

  const plan::Description description_;
  const Settings settings_;
  const state::Layout layout_;
  const plan::Budget budget_;
  const plan::Plan plan_;

 private:
  std::byte* at(plan::Index buffer) const { return running_->arenas().at(plan_.schedule, buffer); }

  std::byte* first_input() const {
    if (plan_.schedule.embedding_output != kNone) return at(plan_.schedule.embedding_output);
    for (const auto& visit : plan_.schedule.visits) {
      if (visit.kind == VisitKind::forward && visit.input != kNone) return at(visit.input);
    }
    throw Error(ErrorCode::bad_input, "no layer takes the embedding's rows; pass an output");
  }

  Visit describe(const plan::Visit& visit) const {
    Visit out{.kind = visit.kind, .block = visit.block, .slice = visit.slice};
    out.weights = running().widening->weights(visit);
    out.input = at(visit.input);
    out.output = at(visit.output);
    const auto& schedule = plan_.schedule;
    if (visit.kind == VisitKind::backward || visit.kind == VisitKind::head_gradient) {
      out.hidden_gradient = at(schedule.hidden_gradient);
    }
    if (visit.kind == VisitKind::embedding_backward) {
      const bool brought = schedule.embedding_gradient != kNone;
      out.hidden_gradient = at(brought ? schedule.embedding_gradient : schedule.hidden_gradient);
    }
    if (visit.position >= accumulator_first() && visit.position <= accumulator_last()) {
      out.accumulator = reinterpret_cast<float*>(at(schedule.accumulator));
    }
    const auto& block = layout_.blocks()[visit.block];
    if (block.role != BlockRole::layer) {
      const auto& chunk = layout_.chunks()[block.first_chunk + visit.slice];
      out.first_row = chunk.first / block.columns;
      out.rows = chunk.used / block.columns;
    }
    return out;
  }

  std::uint32_t accumulator_first() const {
    const auto index = plan_.schedule.accumulator;
    return index == kNone ? 1 : plan_.schedule.buffers[index].first;
  }
  std::uint32_t accumulator_last() const {
    const auto index = plan_.schedule.accumulator;
    return index == kNone ? 0 : plan_.schedule.buffers[index].last;
  }

  const std::size_t embedding_;
  std::unique_ptr<execute::Run> running_;
  std::unique_ptr<execute::ReadBack> read_back_;
  const plan::Visit* open_ = nullptr;
  bool training_ = false;
  bool pending_ = false;                                                ///< an update waits for the next step
  optim::Step update_ = optim::make_step(*description_.optimizer, {});  ///< what it applies
  std::optional<optim::Step> predicted_;                                ///< what early updates of this step apply
  bool subspaces_read_ = false;  ///< projectors in memory are those of the states
  bool kept_ = false;            ///< of the pending update, what was done early
  unsigned calm_ = 0;            ///< steps in a row that were neither clipped nor skipped
  std::int64_t steps_ = 0;       ///< optimizer steps decided so far
  std::uint64_t step_ = 0;       ///< training steps ended so far, skipped ones included
  std::uint64_t applied_ = 0;    ///< the last of them that was not skipped
  bool skipped_ = false;         ///< the last of them was
  execute::LossScaler scaler_;
  bool committed_ = false;  ///< the last of them, or what was loaded before the first
  bool begun_ = false;      ///< something was committed
  double started_ = 0, stalled_before_ = 0;
};

Engine::Engine(plan::Description description, Settings settings)
    : impl_(std::make_unique<Impl>(std::move(description), std::move(settings))) {}
Engine::~Engine() = default;

const plan::Plan& Engine::plan() const {
  return impl_->plan_;
}
std::string Engine::plan_json() const {
  return plan::to_json(impl_->plan_, impl_->description_, impl_->layout_, impl_->budget_);
}
std::string Engine::what_fits(std::uint64_t sequence, std::uint64_t batch, double work_per_token,
                              double device_per_token) const {
  return plan::fits_json({.description = impl_->description_,
                          .budget = impl_->budget_,
                          .rates = impl_->settings_.rates,
                          .sequence = sequence,
                          .batch = batch,
                          .work_per_token = work_per_token,
                          .device_per_token = device_per_token});
}
const state::Layout& Engine::layout() const {
  return impl_->layout_;
}
std::uint64_t Engine::tensor_offset(std::size_t tensor) const {
  const auto first = impl_->layout_.tensors().at(tensor).first;
  return impl_->description_.widens() ? plan::widened_first(impl_->layout_, tensor) : first;
}
Recovery Engine::start(const Opening& opening) {
  return impl_->start(opening);
}
Recovery Engine::read_back(const std::optional<std::filesystem::path>& checkpoint) {
  return impl_->read_back(checkpoint);
}
Verification Engine::verify(const std::vector<std::filesystem::path>& pinned) const {
  return impl_->verify(pinned);
}
void Engine::give_up_volumes() {
  impl_->give_up_volumes();
}
void Engine::close() {
  impl_->close();
}
std::span<std::byte> Engine::memory() const {
  return impl_->running().arena.span();
}
std::span<std::byte> Engine::device_memory() const {
  const auto& run = impl_->running();
  return run.device.device ? run.device.device->memory() : run.arena.span();
}
std::optional<int> Engine::gpu() const {
  return impl_->plan_.residency.device ? execute::gpu_of(impl_->settings_.device.name) : std::nullopt;
}
void Engine::load_weights(const std::filesystem::path& checkpoint,
                          const std::map<std::string, std::string>& stored_names) {
  impl_->load_weights(checkpoint, stored_names);
}
void Engine::store_tensor(std::size_t tensor, std::uint64_t first, std::span<const float> values) {
  impl_->store_tensor(tensor, first, values);
}
void Engine::fetch_tensor(std::size_t tensor, std::uint64_t first, std::span<float> values) {
  impl_->fetch_tensor(tensor, first, values);
}
void Engine::save_weights(const std::filesystem::path& directory, Bytes max_shard,
                          const std::map<std::string, std::string>& stored_names) {
  impl_->save_weights(directory, {.max_shard = max_shard, .names = stored_names});
}
void Engine::save_state(const std::filesystem::path& directory) {
  impl_->save_state(directory);
}
state::StateFormat Engine::load_state(const std::filesystem::path& directory, const std::filesystem::path& weights,
                                      std::int64_t step, const std::map<std::string, std::string>& stored_names) {
  return impl_->load_state(directory, weights, step, stored_names);
}
void Engine::begin_step(const StepBegin& begin) {
  impl_->begin_step(begin);
}
void Engine::embedding_forward(std::byte* output) {
  impl_->embedding_forward(output);
}
std::optional<Visit> Engine::next_visit() {
  return impl_->next_visit();
}
void Engine::end_visit() {
  impl_->end_visit();
}
void Engine::gradient(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch) {
  impl_->gradient(tensor, values, micro_batch);
}
bool Engine::learns_projectors(std::size_t tensor) const {
  return impl_->subspaces(tensor, "learns_projectors()").learns(tensor);
}
void Engine::learn_projectors(std::size_t tensor, std::span<const float> gradient) {
  impl_->learn_projectors(tensor, gradient);
}
void Engine::compress(std::size_t tensor, unsigned side, const std::byte* in, std::size_t in_stride, std::size_t tokens,
                      std::byte* out) {
  impl_->compress(tensor, side, in, in_stride, tokens, out);
}
void Engine::signs(std::size_t tensor, std::span<float> out) const {
  impl_->subspaces(tensor, "signs()").signs(tensor, out);
}
void Engine::sample(std::size_t tensor, std::span<const float> values) {
  impl_->sample(tensor, values);
}
std::vector<Engine::Projectors> Engine::projectors() const {
  return impl_->projectors();
}
void Engine::head_gradient(const std::byte* values, std::uint64_t micro_batch) {
  impl_->head_gradient(values, micro_batch);
}
void Engine::embedding_backward(const std::byte* values) {
  impl_->embedding_backward(values);
}
StepResult Engine::end_step(const StepUpdate& update) {
  return impl_->end_step(update);
}
void Engine::flush() {
  impl_->flush();
}
void Engine::commit(std::string_view payload) {
  impl_->commit(payload);
}
void Engine::set_step(std::uint64_t step) {
  impl_->set_step(step);
}
void Engine::save_manifest(const std::filesystem::path& directory) {
  impl_->save_manifest(directory);
}
void Engine::release_manifest(std::span<const std::byte> manifest) {
  impl_->release_manifest(manifest);
}
std::vector<std::byte> Engine::leave(std::string_view payload) {
  return impl_->leave(payload);
}
void Engine::take_back() {
  impl_->running().take_back();
}
void Engine::loss_stats(std::byte* logits, std::uint64_t tokens, std::uint64_t rows, std::uint64_t first_row,
                        const std::int64_t* labels, float* maximum, float* sum, float* gold) {
  const auto slice = impl_->logits(logits, tokens, rows, first_row, labels);
  impl_->running().compute(device::LossStats{slice, maximum, sum, gold});
}
void Engine::loss_gradient(std::byte* logits, std::uint64_t tokens, std::uint64_t rows, std::uint64_t first_row,
                           const std::int64_t* labels, const float* maximum, const float* log_sum, float scale) {
  const auto slice = impl_->logits(logits, tokens, rows, first_row, labels);
  impl_->running().compute(device::LossGradient{slice, maximum, log_sum, scale});
}
execute::LossScaler::State Engine::loss_scale() const {
  return impl_->loss_scale();
}
void Engine::set_loss_scale(const execute::LossScaler::State& state) {
  impl_->set_loss_scale(state);
}
std::string Engine::counters() const {
  return impl_->counters();
}

std::string Engine::silence() const {
  return impl_->silence();
}
std::string Engine::where() const {
  return impl_->where();
}
std::string Engine::timeline() const {
  return impl_->timeline();
}

}  // namespace spillway
