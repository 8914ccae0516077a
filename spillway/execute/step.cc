#include "spillway/execute/step.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/execute/nodes.h"
#include "spillway/network/exchange.h"
#include "spillway/plan/virtual_ranks.h"

namespace spillway::execute {
namespace {

StepProtocol::Options options_of(const RunPlan& plan) {
  const auto& description = plan.description;
  return {.optimizer = description.optimizer,
          .seed = description.seed,
          .scales_loss = traits(description.weight_dtype).scales_loss,
          .early = plan.plan.early_chunks > 0,
          .speculates = plan.budget.speculative_updates};
}

std::unique_ptr<SparseEmbedding> make_sparse_embedding(const RunPlan& plan, std::byte* memory) {
  const auto* table = plan.layout.embedding();
  if (table == nullptr) return nullptr;
  const auto block = static_cast<std::size_t>(table - plan.layout.blocks().data());
  auto out = std::make_unique<SparseEmbedding>(plan.description, plan.layout, block);
  const auto& schedule = plan.plan.schedule;
  const auto sums = schedule.shared(plan::Operand::row_sums), rows = schedule.shared(plan::Operand::rows);
  if (rows != plan::kNone) {  // else the table is frozen
    out->place(reinterpret_cast<float*>(memory + schedule.buffers[sums].offset),
               memory + schedule.buffers[rows].offset);
  }
  return out;
}

/// Adds the numbers of these processes. `mutual`: they add this one's, too.
void add_numbers(network::Port& port, const std::vector<std::size_t>& peers, bool mutual,
                 std::vector<double>& numbers) {
  std::vector<std::vector<double>> others(peers.size(), std::vector<double>(numbers.size()));
  std::vector<network::Message> messages;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (mutual) messages.push_back({peers[i], true, std::as_writable_bytes(std::span(numbers))});
    messages.push_back({peers[i], false, std::as_writable_bytes(std::span(others[i]))});
  }
  if (!messages.empty()) network::exchange(port, std::move(messages));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    for (const auto& other : others) numbers[i] += other[i];
  }
}

UpdateCores cores_of(const RunPlan& plan) {
  return {.own = plan.rates.update_cores,
          .shared = plan.rates.cores,
          .nodes = update_lanes(plan.budget, plan.rates, plan.nodes),
          .spare_caller = plan.plan.placement.device && gpu_of(plan.device.name).has_value()};
}

}  // namespace

Step::Step(const Parts& parts, const StepPosition& at, bool recovered)
    : parts_(parts),
      layout_(parts.plan.layout),
      protocol_(options_of(parts.plan), at, recovered),
      rows_(make_sparse_embedding(parts.plan, parts.resources.host().data())),
      updater_(parts.plan.plan.schedule, layout_, parts.plan.description.rule(), parts.resources.host().data(),
               rows_.get(), parts.resources.gradient_sink()),
      device_updates_(parts.plan.plan.schedule, layout_, parts.plan.description.rule(), parts.resources.arenas(),
                      parts.resources.gradient_sink()),
      digests_(parts.plan.plan.schedule, layout_, parts.plan.description, parts.resources.arenas(),
               parts.resources.arithmetic(), parts.resources.thread_pool()),
      gradients_(parts.plan.plan.schedule, layout_, parts.plan.description, parts.resources.arenas(), rows_.get(),
                 parts.resources.gradient_sink(), parts.resources.thread_pool(), parts.resources.arithmetic(),
                 &digests_),
      exchange_(parts.plan, parts.resources.arenas(), gradients_.exchange()),
      executor_(parts.plan.plan.schedule, parts.resources.host().data(), parts.store, updater_, cores_of(parts.plan),
                {parts.resources.device(), parts.resources.stream(), &device_updates_},
                {parts.plan.network, &exchange_}),
      passes_(parts.plan, parts.resources, rows_.get(), gradients_, executor_, &digests_),
      pass_gradients_(parts.plan, parts.resources, passes_, gradients_) {}

// ---- begin

void Step::begin(const StepBegin& begin) {
  protocol_.require_idle("begin_step()");
  check(begin);
  if (!begin.training) settle_updates();
  parts_.tensors.settle();
  if (begin.training) {
    require_unwritten(begin);
    begin_reduced(begin.counts.size());
    commit_unless_done();
  }
  if (rows_) rows_->begin(begin.ids, begin.counts);
  began_ = executor_.now();
  executor_.settle_waits();
  stalled_before_ = executor_.waits().sum();
  gradients_.begin(begin.counts.size());
  digests_.begin(begin.digests);
  if (!begin.training) {
    protocol_.evaluate();
    return passes_.begin(mode({}, true, false, false));
  }
  const auto pending = publish();
  const auto predicted = protocol_.begin(begin.update);
  if (predicted) updater_.set_early(*predicted);
  auto its_mode = mode(pending, true, true, predicted.has_value());
  its_mode.trial = begin.trial;
  passes_.begin(its_mode);
}

/// The journal takes the gradients of a step once.
void Step::require_unwritten(const StepBegin& begin) {
  if (begin.trial || parts_.plan.plan.durability != plan::Durability::step) return;
  const auto step = protocol_.position().step + 1;
  if (written_ == step) {
    throw Error(ErrorCode::bad_input, text("step ", step, " was abandoned after its gradients were written to the ",
                                           "storage paths; close the run and resume it"));
  }
  written_ = step;
}

void Step::check(const StepBegin& begin) const {
  std::uint64_t tokens = 0;
  for (const auto count : begin.counts) tokens += count;
  const auto& description = parts_.plan.description;
  if (begin.counts.empty() || begin.counts.size() > description.micro_batches || tokens > description.all_tokens()) {
    throw Error(ErrorCode::bad_input,
                text("a step of ", begin.counts.size(), " micro-batches and ", tokens, " tokens; the plan holds 1 to ",
                     description.micro_batches, " micro-batches and ", description.all_tokens(), " tokens"));
  }
  const auto ranks = plan::VirtualRanks(description.virtual_ranks, begin.counts.size())
                         .restrict_to(description.world.rank, description.world.size);
  std::uint64_t own = 0;
  for (auto m = ranks.position_of(ranks.first()); m < ranks.position_of(ranks.end()); ++m) own += begin.counts[m];
  if (own > description.tokens) {
    throw Error(ErrorCode::bad_input, text("a step of which rank ", description.world.rank, " computes ", own,
                                           " tokens; the plan holds ", description.tokens));
  }
  if (rows_ && begin.ids.size() != tokens) {
    throw Error(ErrorCode::bad_input, text(begin.ids.size(), " token ids for ", tokens, " tokens"));
  }
  if (begin.update) check(*begin.update);
}

void Step::check(const StepUpdate& update) const {
  protocol_.check(update);
  if (update.weight_decay == 0 || layout_.reduction() == nullptr) return;
  const auto& optimizer = *parts_.plan.description.optimizer;
  if (optimizer.decoupled_decay) return;
  throw Error(ErrorCode::bad_input,
              text("weight_decay ", update.weight_decay, " with method ", layout_.reduction()->name, ": ",
                   optimizer.name, " adds it to the gradient, which is not there for a matrix that is trainable in a ",
                   layout_.reduction()->word, "; use adamw or lion, or weight_decay 0"));
}

/// The auxiliary fields that passes go by: those that the last update had.
void Step::begin_reduced(std::uint64_t micro_batches) {
  if (layout_.reduction() == nullptr) return;
  if (!reduced_read_) restore_reduced();  // no update is pending after a start or a load
  reduced_read_ = true;
  const plan::VirtualRanks ranks(parts_.plan.description.virtual_ranks, micro_batches);
  parts_.resources.gradient_sink().begin(protocol_.position().updates, protocol_.scaler().scale(),
                                         ranks.position_of(1));
}

void Step::restore_reduced() {
  const auto& description = parts_.plan.description;
  for (const auto& chunk : layout_.chunks()) {
    if (!chunk.reduced.any()) continue;
    const auto fields = parts_.resources.scratch().subspan(state_fields(description.rule(), chunk).auxiliary,
                                                           chunk.reduced.auxiliary_bytes());
    if (description.has(layout_, chunk)) parts_.tiers.load(chunk.id, nullptr, parts_.resources.scratch().data());
    if (description.is_shared()) {
      network::broadcast(*parts_.plan.network, description.owner(layout_, chunk), fields);
    }
    parts_.resources.gradient_sink().restore(layout_.spans(chunk.id).front().tensor, fields.data());
  }
}

/// The update of the step before, where one is pending, is what the lanes apply from now on.
Publication Step::publish() {
  if (protocol_.state() != StepState::commit) return {};
  auto out = protocol_.publish();
  if (!out.pending) return out;
  updater_.set(out.update);
  device_updates_.set(out.update);
  return out;
}

Mode Step::mode(const Publication& publication, bool passes, bool backward, bool early) {
  const auto& at = protocol_.position();
  return {.update = publication.pending,
          .passes = passes,
          .backward = backward,
          .early = early,
          .kept = publication.kept,
          .stored = parts_.tiers.take_stored(),
          .updated = at.applied,
          .updates = static_cast<std::uint64_t>(at.updates),
          .step = at.step + 1,
          .packed_rows = rows_ ? rows_->packed_bytes() : 0};
}

// ---- passes

void Step::embedding_forward(std::byte* output) {
  protocol_.require_passes("embedding_forward()");
  passes_.embedding_forward(output);
}

std::optional<BlockPass> Step::next_pass() {
  protocol_.require_passes("next_pass()");
  return passes_.next();
}

// ---- end

kernels::Norm Step::norm() {
  passes_.require_ended();
  protocol_.norm();
  executor_.end_network();
  return norm_ = parts_.plan.description.is_shared() ? shared_norm() : gradients_.total();
}

kernels::Norm Step::shared_norm() {
  auto& sink = parts_.resources.gradient_sink();
  const auto& squares = gradients_.squares();
  const auto records = sink.records();
  std::vector<double> numbers(squares.begin(), squares.end());
  numbers.insert(numbers.end(), records.begin(), records.end());
  gather(numbers);
  std::copy(numbers.begin() + static_cast<std::ptrdiff_t>(squares.size()), numbers.end(), records.begin());
  sink.tell();
  kernels::Norm out;
  for (std::size_t i = 0; i < squares.size(); ++i) out.sum += numbers[i];
  return out;
}

/// Adds those of all processes, each of which has its own and zeros: those of a machine in its first process, which
/// then has to do with the first ones of the others.
void Step::gather(std::vector<double>& numbers) const {
  const auto& world = parts_.plan.description.world;
  auto& port = *parts_.plan.network;
  const auto first = world.machine_of(world.rank) * world.local;
  const auto bytes = std::as_writable_bytes(std::span(numbers));
  if (world.rank != first) {
    network::move_bytes(port, std::span(&first, 1), true, bytes);
    return network::move_bytes(port, std::span(&first, 1), false, bytes);
  }
  std::vector<std::size_t> here, elsewhere;
  for (auto peer = first + 1; peer < first + world.local; ++peer) here.push_back(peer);
  for (std::size_t peer = 0; peer < world.size; peer += world.local) {
    if (peer != first) elsewhere.push_back(peer);
  }
  add_numbers(port, here, false, numbers);
  add_numbers(port, elsewhere, true, numbers);
  network::move_bytes(port, here, true, bytes);
}

StepResult Step::decide(const kernels::Norm& norm, const StepUpdate& update) {
  check(update);
  const auto decision = protocol_.decide(norm, update);
  StepResult out{.grad_norm = decision.grad_norm,
                 .clip = decision.clip,
                 .loss_scale = decision.loss_scale,
                 .skipped = decision.skipped};
  if (layout_.reduction() != nullptr) parts_.resources.gradient_sink().end(!decision.skipped);
  settle_early(decision, out);
  measure(out);
  return out;
}

void Step::measure(StepResult& out) {
  executor_.settle_waits();
  out.step = protocol_.position().updates;
  out.seconds = executor_.now() - began_;
  out.stall_seconds = executor_.waits().sum() - stalled_before_;
}

/// Early updates stay where they applied what was decided; else the old versions are put back.
void Step::settle_early(const Decision& decision, StepResult& out) {
  const auto& chunks = executor_.end_early();
  out.early = chunks.size();
  if (decision.kept) return;
  updater_.undo().restore(chunks, parts_.resources.thread_pool());
  out.undone = chunks.size();
}

void Step::abandon() {
  protocol_.abandon();
  if (layout_.reduction() != nullptr) parts_.resources.gradient_sink().end(false);
  StepResult undone;
  settle_early({}, undone);
}

StepResult Step::end(const StepUpdate& update) {
  const bool is_summed = protocol_.state() == StepState::norm;
  if (!is_summed) protocol_.require_passes("end_step()");
  passes_.require_ended();
  if (protocol_.state() == StepState::evaluate) {
    protocol_.end_evaluation();
    StepResult out;
    measure(out);
    return out;
  }
  check(update);
  return decide(is_summed ? norm_ : norm(), update);
}

// ---- between steps

void Step::commit(std::string_view payload) {
  const bool durable = parts_.saving.durable();
  if (durable && protocol_.state() == StepState::begin) {  // what every later step is replayed from
    settle();
    if (parts_.plan.plan.durability == plan::Durability::step) {
      parts_.saving.publish_snapshots(protocol_.position().step);
    }
  }
  const auto commitment = protocol_.commit();
  if (durable) parts_.saving.commit(commitment, payload);
}

void Step::commit_unless_done(std::string_view payload) {
  if (protocol_.state() == StepState::begin || protocol_.state() == StepState::decide) commit(payload);
}

void Step::settle_updates() {
  if (passes_.left()) protocol_.require_idle("reading or changing weights");
  if (protocol_.pending()) commit_unless_done();
  if (const auto pending = publish(); pending.pending) {
    executor_.begin(mode(pending, false, false, false));
    if (executor_.next() != nullptr) throw Error(ErrorCode::internal, "a flush has passes");
  }
  executor_.drain();
}

void Step::settle() {
  settle_updates();
  parts_.tensors.settle();
}

void Step::load() {
  if (parts_.saving.durable() && protocol_.state() != StepState::begin) {
    throw Error(ErrorCode::bad_input, "this run is durable and has begun; weights and states change by steps alone");
  }
  settle_updates();
  protocol_.load();
  reduced_read_ = false;
}

}  // namespace spillway::execute
