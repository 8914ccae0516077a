#include "spillway/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "spillway/execute/executor.h"
#include "spillway/execute/gradients.h"
#include "spillway/execute/loss.h"
#include "spillway/execute/rows.h"
#include "spillway/execute/store.h"
#include "spillway/execute/team.h"
#include "spillway/execute/tiers.h"
#include "spillway/execute/trace.h"
#include "spillway/execute/updater.h"
#include "spillway/kernels/adamw.h"
#include "spillway/memory/arena.h"
#include "spillway/state/checkpoint.h"
#include "spillway/state/convert.h"
#include "spillway/storage/path.h"
#include "spillway/storage/pool.h"

namespace spillway {
namespace {

using plan::kNone;
using plan::VisitKind;
using state::BlockRole;
using state::ComputeType;

const plan::Budget& checked(const plan::Budget& budget, const StorageOptions& storage) {
  if (budget.paths.size() == storage.directories.size()) return budget;
  throw Error(ErrorCode::bad_input, text("the budget names ", budget.paths.size(), " storage paths, the settings ",
                                         storage.directories.size(), " directories"));
}

std::size_t find_block(const state::Layout& layout, BlockRole role) {
  for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
    if (layout.blocks()[b].role == role) return b;
  }
  return kNone;
}

/// What exists between start() and close().
struct Running {
  memory::Arena arena;
  std::vector<std::unique_ptr<storage::Path>> paths;
  std::unique_ptr<storage::Pool> pool;
  std::unique_ptr<execute::Store> store;
  std::unique_ptr<execute::Team> team;
  std::unique_ptr<execute::EmbeddingRows> rows;
  std::unique_ptr<execute::Updater> updater;
  std::unique_ptr<execute::Gradients> gradients;
  std::unique_ptr<execute::Tiers> tiers;
  std::unique_ptr<execute::Executor> executor;
};

/// The tiers as the state room sees them: whole chunks in and out.
class TierStore : public state::ChunkStore {
 public:
  explicit TierStore(execute::Tiers& tiers) : tiers_(tiers) {}
  void load(std::size_t chunk, std::byte* weight, std::byte* state) override { tiers_.load(chunk, weight, state); }
  void store(std::size_t chunk, const std::byte* weight, const std::byte* state) override {
    tiers_.store(chunk, weight, state);
  }

 private:
  execute::Tiers& tiers_;
};

}  // namespace

class Engine::Impl {
 public:
  Impl(plan::Description description, Settings settings)
      : description_(std::move(description)),
        settings_(std::move(settings)),
        layout_(description_.blocks, description_.chunk_elements),
        budget_(checked(settings_.budget, settings_.storage)),
        plan_(plan::make_plan(description_, layout_, budget_, settings_.rates)),
        embedding_(find_block(layout_, BlockRole::embedding)) {}

  ~Impl() { close(); }

  void start() {
    auto run = std::make_unique<Running>();
    const auto& schedule = plan_.schedule;
    for (std::size_t p = 0; p < budget_.paths.size(); ++p) run->paths.push_back(open_path(p));
    run->arena = memory::Arena(plan_.arena);
    for (const auto& path : run->paths) path->register_memory(run->arena.span());
    if (plan_.path_bytes > 0) {
      run->pool = std::make_unique<storage::Pool>(members(run->paths));
      run->store = std::make_unique<execute::Store>(plan_, description_, layout_, *run->pool);
    }
    run->team = std::make_unique<execute::Team>(std::max(1U, settings_.threads));
    auto* arena = run->arena.data();
    if (embedding_ != kNone) {
      run->rows = std::make_unique<execute::EmbeddingRows>(layout_, embedding_, description_.type,
                                                           description_.tied_head, description_.tokens);
      run->rows->place(reinterpret_cast<float*>(arena + schedule.buffers[schedule.row_sums].offset),
                       arena + schedule.buffers[schedule.rows].offset);
    }
    run->updater = std::make_unique<execute::Updater>(schedule, layout_, description_.type, arena, run->rows.get());
    run->gradients =
        std::make_unique<execute::Gradients>(schedule, layout_, description_.type, arena, run->rows.get(), *run->team);
    run->tiers = std::make_unique<execute::Tiers>(plan_, layout_, description_.type, arena, run->store.get());
    run->executor = std::make_unique<execute::Executor>(schedule, arena, run->store.get(), *run->updater);
    running_ = std::move(run);
    filled_.assign(layout_.chunks().size(), false);
    edited_ = kNone;
    pending_ = false;
    steps_ = 0;
  }

  void close() { running_.reset(); }

  Running& running() const {
    if (!running_) throw Error(ErrorCode::bad_input, "the engine is not started; call start() first");
    return *running_;
  }

  // ---- state ----

  /// Between steps, the bytes above what is resident are free: room for one chunk.
  std::span<std::byte> scratch() const { return running().arena.span().subspan(plan_.resident); }

  state::ChunkStream stream(state::ChunkStore& store) const { return {layout_, description_.type, store, scratch()}; }

  struct ChunkMemory {
    std::byte* weight;
    std::byte* state;
  };
  ChunkMemory chunk_memory(std::size_t chunk) const {
    const auto weight_bytes = layout_.chunks()[chunk].elements * state::field_bytes(description_.type).weight;
    return {scratch().data(), scratch().data() + weight_bytes};
  }

  /// The chunk in scratch memory, to be changed; kept until another one is wanted.
  ChunkMemory edit(std::size_t chunk) {
    const auto memory = chunk_memory(chunk);
    if (edited_ == chunk) return memory;
    put_back();
    const auto bytes = state::field_bytes(description_.type);
    if (filled_[chunk]) {
      running().tiers->load(chunk, memory.weight, memory.state);
    } else {
      std::memset(memory.weight, 0, layout_.chunks()[chunk].elements * (bytes.weight + bytes.state));
    }
    edited_ = chunk;
    return memory;
  }

  void put_back() {
    if (edited_ == kNone) return;
    const auto memory = chunk_memory(edited_);
    running().tiers->store(edited_, memory.weight, memory.state);
    filled_[edited_] = true;
    edited_ = kNone;
  }

  /// What was never stored is zero.
  void fill_rest() {
    put_back();
    for (std::size_t c = 0; c < filled_.size(); ++c) {
      if (!filled_[c]) {
        edit(c);
        put_back();
      }
    }
  }

  void load_weights(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& names) {
    settle_updates();
    edited_ = kNone;
    const state::SafetensorsReader reader(checkpoint);
    TierStore store(*running().tiers);
    state::load_weights(stream(store), reader, names);
    filled_.assign(filled_.size(), true);
  }

  /// Calls body(span, chunk) for the parts of elements [first, first + count) of a tensor.
  void for_parts(std::size_t tensor, std::uint64_t first, std::uint64_t count, auto body) {
    const auto& it = layout_.tensors().at(tensor);
    if (first + count > it.elements) {
      throw Error(ErrorCode::bad_input,
                  text("elements ", first, " to ", first + count, " of ", it.spec.name, ", which has ", it.elements));
    }
    const auto& block = layout_.blocks()[it.block];
    for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
      for (auto span : layout_.spans(c)) {
        if (span.tensor != tensor) continue;
        const auto begin = std::max(first, span.tensor_first);
        const auto end = std::min(first + count, span.tensor_first + span.elements);
        if (begin >= end) continue;
        span.chunk_first += begin - span.tensor_first;
        span.tensor_first = begin;
        span.elements = end - begin;
        body(span, c);
      }
    }
  }

  void store_tensor(std::size_t tensor, std::uint64_t first, std::span<const float> values) {
    settle_updates();
    for_parts(tensor, first, values.size(), [&](const state::Span& span, std::size_t c) {
      const auto memory = edit(c);
      const auto fields =
          state::chunk_fields(description_.type, layout_.chunks()[c].elements, memory.weight, memory.state);
      state::to_chunk(values.subspan(span.tensor_first - first, span.elements), fields, span.chunk_first);
    });
  }

  void fetch_tensor(std::size_t tensor, std::uint64_t first, std::span<float> values) {
    settle_updates();
    for_parts(tensor, first, values.size(), [&](const state::Span& span, std::size_t c) {
      const auto memory = edit(c);
      const auto fields =
          state::chunk_fields(description_.type, layout_.chunks()[c].elements, memory.weight, memory.state);
      state::from_chunk(fields, span.chunk_first, values.subspan(span.tensor_first - first, span.elements));
    });
  }

  void save_weights(const std::filesystem::path& directory, Bytes max_shard) {
    settle();
    TierStore store(*running().tiers);
    state::save_weights(stream(store), directory, {.max_shard = max_shard});
  }

  void save_state(const std::filesystem::path& directory) {
    settle();
    TierStore store(*running().tiers);
    state::save_state(stream(store), directory);
  }

  void load_state(const std::filesystem::path& directory, const std::filesystem::path& weights, std::int64_t step) {
    settle_updates();
    edited_ = kNone;
    TierStore store(*running().tiers);
    state::load_state(stream(store), directory, weights);
    filled_.assign(filled_.size(), true);
    steps_ = step;
  }

  // ---- steps ----

  void begin_step(const StepBegin& begin) {
    auto& run = running();
    std::uint64_t tokens = 0;
    for (const auto count : begin.counts) tokens += count;
    check_step(begin, tokens);
    if (!begin.training) settle();
    fill_rest();
    if (run.rows) run.rows->begin(begin.ids);
    started_ = run.executor->now();
    stalled_before_ = stalled();
    training_ = begin.training;
    if (pending_) run.updater->set(update_);
    run.gradients->begin(begin.counts.size());
    const bool update = pending_;
    pending_ = false;
    run.executor->begin({.update = update, .visits = true, .backward = begin.training});
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

  void gradient(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch) {
    open_visit(VisitKind::backward, "gradient()");
    running().gradients->take(tensor, values, micro_batch);
  }

  void head_gradient(const std::byte* values, std::uint64_t micro_batch) {
    open_visit(VisitKind::head_gradient, "head_gradient()");
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
    StepResult out;
    if (training_) decide(update, out);
    out.step = steps_;
    out.seconds = run.executor->now() - started_;
    out.stall_seconds = stalled() - stalled_before_;
    return out;
  }

  /// Norm, finite check and clipping; the update itself waits for the next step or for settle().
  void decide(const StepUpdate& update, StepResult& out) {
    const auto norm = running().gradients->total();
    out.grad_norm = std::sqrt(norm.sum);
    out.skipped = !norm.finite();
    float clip = 1;
    if (update.max_grad_norm > 0) {  // torch.nn.utils.clip_grad_norm_, in fp32
      clip = std::min(1.0F, static_cast<float>(update.max_grad_norm) / (static_cast<float>(out.grad_norm) + 1e-6F));
    }
    out.clip = clip;
    if (out.skipped) return;
    ++steps_;
    update_ = {.learning_rate = update.learning_rate,
               .beta1 = update.beta1,
               .beta2 = update.beta2,
               .epsilon = update.epsilon,
               .weight_decay = update.weight_decay,
               .gradient_scale = clip,
               .step = steps_};
    pending_ = true;
  }

  /// Every pending update and every stored tensor on its tier; the memory above what is resident is free.
  void settle() {
    settle_updates();
    fill_rest();
  }

  void settle_updates() {
    auto& run = running();
    if (pending_) {
      run.updater->set(update_);
      pending_ = false;
      run.executor->begin({.update = true, .visits = false, .backward = false});
      if (run.executor->next() != nullptr) throw Error(ErrorCode::internal, "a flush has visits");
    }
    run.executor->drain();
  }

  // ---- telling ----

  std::string counters() const {
    nlohmann::json out;
    const auto& run = running();
    out["arena_bytes"] = run.arena.size();
    out["stall_seconds"] = run.executor->stalls();
    for (std::size_t p = 0; p < run.paths.size(); ++p) {
      const auto& path = *run.paths[p];
      const auto c = path.counters();
      out["paths"][budget_.paths[p].name] = {{"read", c.read},
                                             {"written", c.written},
                                             {"busy_seconds", c.busy_seconds},
                                             {"read_seconds", c.read_seconds},
                                             {"write_seconds", c.write_seconds},
                                             {"direct", path.direct()},
                                             {"notice", path.notice()},
                                             {"volume", path.volume().string()}};
    }
    add_pool(out);
    return out.dump();
  }

  /// Measured rates, and the paths that were taken out.
  void add_pool(nlohmann::json& out) const {
    const auto* pool = running().pool.get();
    if (pool == nullptr) return;
    const auto states = pool->paths();
    for (std::size_t p = 0; p < states.size(); ++p) {
      auto& path = out["paths"][budget_.paths[p].name];
      path["read_rate"] = states[p].speed.read;
      path["write_rate"] = states[p].speed.write;
      path["used"] = states[p].capacity - states[p].free;
    }
    out["outages"] = nlohmann::json::array();
    for (const auto& outage : pool->outages()) {
      out["outages"].push_back({{"path", budget_.paths[outage.path].name}, {"reason", outage.reason}});
    }
  }

  std::string timeline() const { return execute::trace(plan_, layout_, running().executor->last_times()); }

  execute::LogitSlice logits(std::byte* values, std::uint64_t tokens, std::uint64_t rows, std::uint64_t first_row,
                             const std::int64_t* labels) const {
    return {description_.type, values, tokens, rows, first_row, labels};
  }

  const plan::Description description_;
  const Settings settings_;
  const state::Layout layout_;
  const plan::Budget budget_;
  const plan::Plan plan_;

 private:
  std::unique_ptr<storage::Path> open_path(std::size_t number) const {
    storage::PathOptions options;
    options.name = std::to_string(number);
    options.directory = settings_.storage.directories[number];
    options.capacity = plan_.volumes[number];
    options.run = settings_.run;
    options.overwrite = settings_.storage.overwrite;
    options.share.emplace();
    auto path = std::make_unique<storage::Path>(options);
    if (!settings_.storage.keep) path->remove_on_close();
    return path;
  }

  std::vector<storage::PoolPath> members(const std::vector<std::unique_ptr<storage::Path>>& paths) const {
    std::vector<storage::PoolPath> out;
    for (std::size_t p = 0; p < paths.size(); ++p) {
      const auto rates = p < settings_.rates.paths.size() ? settings_.rates.paths[p] : plan::PathRates{};
      out.push_back({.path = paths[p].get(),
                     .capacity = plan_.volumes[p],
                     .expected = {.read = rates.read, .write = rates.write},
                     .name = std::to_string(p)});
    }
    return out;
  }

  std::byte* at(plan::Index buffer) const {
    return buffer == kNone ? nullptr : running_->arena.data() + plan_.schedule.buffers[buffer].offset;
  }

  std::byte* first_input() const {
    for (const auto& visit : plan_.schedule.visits) {
      if (visit.kind == VisitKind::forward && visit.input != kNone) return at(visit.input);
    }
    throw Error(ErrorCode::bad_input, "no layer takes the embedding's rows; pass an output");
  }

  Visit describe(const plan::Visit& visit) const {
    Visit out{.kind = visit.kind, .block = visit.block, .slice = visit.slice};
    out.weights = at(visit.weights);
    out.input = at(visit.input);
    out.output = at(visit.output);
    const auto& schedule = plan_.schedule;
    if (visit.kind == VisitKind::backward || visit.kind == VisitKind::head_gradient) {
      out.hidden_gradient = at(schedule.hidden_gradient);
    }
    if (visit.kind == VisitKind::embedding_backward) out.hidden_gradient = at(schedule.hidden_gradient);
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

  double stalled() const {
    double sum = 0;
    for (const auto& [cause, seconds] : running_->executor->stalls()) sum += seconds;
    return sum;
  }

  const std::size_t embedding_;
  std::unique_ptr<Running> running_;
  const plan::Visit* open_ = nullptr;
  std::vector<bool> filled_;    ///< by chunk: something was stored
  std::size_t edited_ = kNone;  ///< chunk in scratch memory whose changes are not on its tier
  bool training_ = false;
  bool pending_ = false;       ///< an update waits for the next step
  kernels::AdamWStep update_;  ///< what it applies
  std::int64_t steps_ = 0;     ///< optimizer steps decided so far
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
const state::Layout& Engine::layout() const {
  return impl_->layout_;
}
void Engine::start() {
  impl_->start();
}
void Engine::close() {
  impl_->close();
}
std::span<std::byte> Engine::memory() const {
  return impl_->running().arena.span();
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
void Engine::save_weights(const std::filesystem::path& directory, Bytes max_shard) {
  impl_->save_weights(directory, max_shard);
}
void Engine::save_state(const std::filesystem::path& directory) {
  impl_->save_state(directory);
}
void Engine::load_state(const std::filesystem::path& directory, const std::filesystem::path& weights,
                        std::int64_t step) {
  impl_->load_state(directory, weights, step);
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
  impl_->settle();
}
void Engine::loss_stats(std::byte* logits, std::uint64_t tokens, std::uint64_t rows, std::uint64_t first_row,
                        const std::int64_t* labels, float* maximum, float* sum, float* gold) {
  execute::loss_stats(impl_->logits(logits, tokens, rows, first_row, labels), maximum, sum, gold,
                      *impl_->running().team);
}
void Engine::loss_gradient(std::byte* logits, std::uint64_t tokens, std::uint64_t rows, std::uint64_t first_row,
                           const std::int64_t* labels, const float* maximum, const float* log_sum, float scale) {
  execute::loss_gradient(impl_->logits(logits, tokens, rows, first_row, labels), maximum, log_sum, scale,
                         *impl_->running().team);
}
std::string Engine::counters() const {
  return impl_->counters();
}
std::string Engine::timeline() const {
  return impl_->timeline();
}

}  // namespace spillway
