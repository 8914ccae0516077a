#include "spillway/execute/run.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "spillway/base/error.h"
#include "spillway/base/interrupt.h"
#include "spillway/execute/names.h"
#include "spillway/storage/superblock.h"
#include "spillway/storage/waiter.h"

namespace spillway::execute {
namespace {

using Clock = std::chrono::steady_clock;

/// Times that volumes are looked at again because another process of the run had them, and has removed them since, or
/// has made them and recorded steps.
constexpr int kLooks = 8;

std::vector<storage::Path*> pointers(const std::vector<std::unique_ptr<storage::Path>>& paths) {
  std::vector<storage::Path*> out;
  for (const auto& path : paths) out.push_back(path.get());
  return out;
}

bool large_enough(const std::vector<std::unique_ptr<storage::Path>>& paths, std::span<const Bytes> capacities) {
  return std::ranges::equal(paths, capacities,
                            [](const auto& path, Bytes capacity) { return path->capacity() >= capacity; });
}

/// Adds the seconds of a scope.
class Clocked {
 public:
  explicit Clocked(double& sum) : sum_(sum) {}
  ~Clocked() { sum_ += std::chrono::duration<double>(Clock::now() - began_).count(); }
  Clocked(const Clocked&) = delete;
  Clocked& operator=(const Clocked&) = delete;

 private:
  double& sum_;
  const Clock::time_point began_ = Clock::now();
};

}  // namespace

journal::Manifest read_manifest(const std::filesystem::path& directory, std::uint64_t identity,
                                const journal::RecordCheck& check) {
  const auto file = directory / kManifestName;
  const auto bytes = journal::read_manifest_file(file);
  try {
    auto manifest = journal::decode_manifest(bytes, identity);
    if (const auto wrong = check.objection(manifest); !wrong.empty()) {
      throw Error(ErrorCode::corrupt,
                  text("the manifest of a checkpoint says what cannot be: ", wrong, "; use another checkpoint"));
    }
    return manifest;
  } catch (const Error& error) {
    throw Error(error.code(), text(file.string(), ": ", error.what()), 0, file.string());
  }
}

void Found::take(const journal::Commit& commit, const optim::Descriptor& optimizer) {
  found = true;
  step = commit.step;
  applied = commit.applied();
  updates = optim::decode(optimizer, commit.update).step;
  payload.assign(reinterpret_cast<const char*>(commit.payload.data()), commit.payload.size());
}

Run::Run(const RunPlan& plan, const VolumeSettings& volumes, unsigned threads, const Opening& opening) : plan_(plan) {
  const auto began = Clock::now();
  auto& phases = found_.phases;
  {
    const Clocked clocked(phases.opening);
    const bool on_paths = plan.plan.path_bytes > 0;
    if (!on_paths && opening.checkpoint) {
      throw Error(ErrorCode::bad_input,
                  text(opening.checkpoint->string(), " lies on storage paths, and this plan keeps nothing there; give ",
                       "the placement and durability that the run was started with"));
    }
    if (on_paths ? !open_storage(volumes, opening, kLooks) : opening.if_found) return;
  }
  phases.opening -= phases.memory + phases.records;
  make_lanes(threads);
  if (found_.found) {
    Replay replay = back_ ? Replay(replay_parts(), *back_) : Replay(replay_parts(), recovered_);
    restore(replay);
  }
  recovered_ = {};
  pinned_.clear();
  back_.reset();
  for (const auto& path : paths) path->remove_on_close(!volumes.keep);
  found_.seconds = std::chrono::duration<double>(Clock::now() - began).count();
}

void Run::open_paths(const VolumeSettings& volumes, std::span<const Bytes> capacities,
                     const std::optional<journal::JournalSpec>& spec, VolumeMode mode) {
  journal.reset();
  paths.clear();
  const Bytes records = spec ? journal::MetadataLayout(*spec).bytes() : 0;
  paths = open_volumes(volumes, capacities, records, fingerprint(plan_.description, plan_.layout), mode);
  if (spec) journal = std::make_unique<journal::RunJournal>(*spec, pointers(paths), plan_.plan.path_spare / 2);
}

/// False when only what is found was to be opened, and nothing was.
bool Run::open_storage(const VolumeSettings& volumes, const Opening& opening, int looks) {
  const auto& plan = plan_.plan;
  std::optional<journal::JournalSpec> spec;
  std::optional<journal::MetadataLayout> layout;  // of their records
  if (plan_.durable()) {
    spec = journal_spec(plan_.description, plan_.layout, plan.durability, volumes.run, volumes.places.size());
    layout.emplace(*spec);
  }
  const bool there = layout && opening.reopen && holds_run(volumes, *layout);
  if (!there && opening.checkpoint) {
    throw Error(ErrorCode::bad_input, text(opening.checkpoint->string(),
                                           " lies on storage paths, but these hold nothing of this run; name the ",
                                           "paths that the run was started with, and a durability other than none"));
  }
  if (!there && opening.if_found) return false;
  if (!there) require_nothing_is_lost(volumes, layout ? &*layout : nullptr);
  const auto open = [&](std::span<const Bytes> capacities) {
    open_paths(volumes, capacities, spec, there ? VolumeMode::reopen : VolumeMode::make);
    if (there) recover(opening);
    return found_.found || !opening.if_found;
  };
  try {  // what cannot be gone on with is not made larger first
    if (there && !open(std::vector<Bytes>(volumes.places.size()))) return false;
    if (!there || !large_enough(paths, plan.volumes)) open(plan.volumes);
  } catch (const Error& error) {
    const bool changed = opening.reopen && error.errno_value() == (there ? ENOENT : EEXIST);
    if (!changed || looks <= 1) throw;
    return open_storage(volumes, opening, looks - 1);
  }
  map_memory();
  pool = std::make_unique<storage::Pool>(pool_paths(paths, plan_.rates, plan_.budget.paths),
                                         journal ? journal->pool_options() : storage::PoolOptions{});
  if (journal) open_journal();
  store = std::make_unique<Store>(plan, plan_.description, plan_.layout, *pool, journal.get());
  return true;
}

void Run::map_memory() {
  const Clocked clocked(found_.phases.memory);
  arena = memory::Arena(plan_.plan.arena, arena_parts(plan_.plan, plan_.budget, plan_.nodes));
  for (const auto& path : paths) path->register_memory(arena.span());
  open_device();
}

void Run::open_device() {
  if (!plan_.plan.residency.device) return;
  device = execute::open_device(plan_.device);
  device.device->register_host(arena.span());
  device.device->allocate(plan_.plan.device_arena);
}

Arithmetic Run::arithmetic() {
  const auto sizes = plan::device_workspace(plan_.layout, plan_.description.tied_head, plan_.description.tokens);
  if (!device.device) host_ = device::make_cpu();
  auto& where = calculator();
  where.use(crew());
  if (!device.device) return {where, host_->adopt_stream(nullptr), nullptr, sizes};
  return {where, device.stream, device.device->memory().data() + (plan_.plan.device_arena - sizes.bytes()), sizes};
}

void Run::recover(const Opening& opening) {
  const auto phases = found_.phases;
  found_ = {};
  found_.phases = phases;
  pinned_.clear();
  const journal::RecordCheck check(journal->spec(), object_sizes(plan_.description, plan_.layout, journal->spec()),
                                   capacities_of(paths));
  for (const auto& directory : opening.pinned())
    pinned_.push_back(read_manifest(directory, journal->identity(), check));
  if (opening.checkpoint) back_ = read_manifest(*opening.checkpoint, journal->identity(), check);
  const Clocked clocked(found_.phases.records);
  const ObjectNames names(plan_.description, plan_.layout);
  recovered_ = journal::recover(
      journal->spec(), journal->media(),
      {.name = [&](auto kind, auto object) { return names.of(kind, object); },
       .objection = [&](auto kind, auto object, auto pieces) { return check.objection(kind, object, pieces); },
       .pinned = pinned_});
  for (const auto& damage : recovered_.damage) {
    found_.damage.push_back(
        text("path:", damage.path, " at byte ", storage::kSuperblockExtent + damage.offset, ": ", damage.what));
  }
  const bool counts = recovered_.found && recovered_.newest.step >= opening.at_least;
  if (!counts && !back_ && opening.at_least == 0 && !recovered_.damage.empty()) {
    throw Error(ErrorCode::corrupt, text("no durable step was found on the storage paths, and ", found_.damage.size(),
                                         " of their records are damaged, the first is ", found_.damage.front(),
                                         ". Resume from a checkpoint, or start anew with --overwrite"));
  }
  if (!counts && !back_) return;
  const auto& commit = back_ ? back_->commit : recovered_.newest;
  found_.take(commit, *plan_.description.optimizer);
}

void Run::open_journal() {
  journal->attach(*pool);
  for (const auto place : recovered_.places) pool->claim(place);
  journal->open({.before = &recovered_, .back = back_ ? &*back_ : nullptr, .resume = found_.found, .pinned = pinned_});
  if (found_.found) committed_ = found_.step;
  const GradientIds ids(plan_.description, plan_.layout);
  for (std::uint32_t gradient = 0; gradient < ids.count(); ++gradient) gradient_ids_.push_back(gradient);
}

void Run::make_lanes(unsigned threads) {
  const auto& schedule = plan_.plan.schedule;
  const auto& layout = plan_.layout;
  if (arena.size() == 0) map_memory();
  auto* memory = arena.data();
  team = std::make_unique<Team>(std::max(1U, threads));
  if (const auto* table = table_of(layout)) {
    const auto block = static_cast<std::size_t>(table - layout.blocks().data());
    rows = std::make_unique<EmbeddingRows>(plan_.description, layout, block);
    if (schedule.rows != plan::kNone) {  // else the table is frozen
      rows->place(reinterpret_cast<float*>(memory + schedule.buffers[schedule.row_sums].offset),
                  memory + schedule.buffers[schedule.rows].offset);
    }
  }
  const auto where = arithmetic();
  subspaces = std::make_unique<Subspaces>(plan_.description, layout);
  for (auto& room : subspaces->rooms()) calculator().register_host(std::as_writable_bytes(std::span(room)));
  compress = std::make_unique<Compress>(layout, plan_.description.computes(), *subspaces, where);
  widening = std::make_unique<Widening>(schedule, layout, plan_.description.rule(), arenas(), where);
  updater = std::make_unique<Updater>(schedule, layout, plan_.description.rule(), memory, rows.get(), *subspaces);
  device_updates = std::make_unique<DeviceUpdates>(schedule, layout, plan_.description.rule(), arenas(), *subspaces);
  gradients =
      std::make_unique<Gradients>(schedule, layout, plan_.description, arenas(), rows.get(), *subspaces, *team, where);
  tiers =
      std::make_unique<Tiers>(plan_.plan, layout, plan_.description.rule(), arenas(), store.get(), device.device.get());
  tensors = std::make_unique<Tensors>(plan_.description, layout, *tiers, scratch(), found_.found);
  executor = std::make_unique<Executor>(
      schedule, memory, store.get(), *updater,
      UpdateCores{plan_.rates.update_cores, plan_.rates.cores, update_lanes(plan_.budget, plan_.rates, plan_.nodes)},
      ComputeDevice{device.device.get(), device.stream, device_updates.get()});
}

void Run::give_up_volumes() noexcept {
  for (const auto& path : paths) path->remove_on_close();
}

void Run::set_update(const optim::Step& step) {
  updater->set(step);
  device_updates->set(step);
}

device::Crew Run::crew() const {
  return {team.get(), [](void* self, std::size_t tiles, const void* body, Team::Call call) {
            static_cast<Team*>(self)->run_erased(tiles, body, call);
          }};
}

void Run::compute(const device::Work& work) {
  calculator().run(device.stream, work);
}

// ---- what was left

Replay::Parts Run::replay_parts() {
  path_pointers_ = pointers(paths);
  return {plan_.description, plan_.layout, path_pointers_, *pool, *team};
}

void Run::restore(Replay& replay) {
  const auto needed =
      largest_chunk_bytes(plan_.description.rule(), plan_.layout) + round_up(replay.scratch(), Bytes{4096});
  // Steps of more tokens than now have larger gradients of rows.
  memory::Arena larger(needed > scratch().size() ? needed : 0);
  const auto memory = larger.size() > 0 ? larger.span() : scratch();
  found_.chunks = plan_.layout.chunks().size();
  for (std::size_t c = 0; c < found_.chunks; ++c) {
    throw_if_interrupted();
    restore_chunk(replay, c, memory);
  }
}

void Run::restore_chunk(Replay& replay, std::size_t chunk, std::span<std::byte> memory) {
  auto* weight = tiers->resident_weight(chunk);
  auto* state = tiers->resident_state(chunk);
  const auto missing = replay.missing(chunk);
  const bool there = tiers->on_device(chunk);
  const Clocked clocked(missing == 0 ? found_.phases.reading : found_.phases.replay);
  const auto rule = plan_.description.rule();
  const auto& it = plan_.layout.chunks()[chunk];
  const auto weights = memory.first(weight_bytes(rule, it));
  const auto states = memory.subspan(weights.size(), state_bytes(rule, it));
  if (missing == 0) {
    replay.expect_snapshot(chunk);
    store->adopt(replay.snapshot(chunk));
    replay.load(chunk, there ? weights.data() : weight, there ? states.data() : state, {});
    if (there) tiers->store(chunk, weights.data(), states.data());
    return;
  }
  ++found_.replayed;
  found_.steps = std::max(found_.steps, missing);
  replay.load(chunk, weights.data(), states.data(), memory.subspan(weights.size() + states.size()));
  write(Field::weight, chunk, weights.data(), found_.applied);
  write(Field::state, chunk, states.data(), found_.applied);
  store->publish(chunk, found_.applied);
  if (there) tiers->store(chunk, weights.data(), states.data());
  if (weight != nullptr) std::memcpy(weight, weights.data(), weights.size());
  if (state != nullptr) std::memcpy(state, states.data(), states.size());
}

void Run::write(Field field, std::size_t chunk, const std::byte* memory, std::uint64_t version) {
  const auto rule = plan_.description.rule();
  const auto& it = plan_.layout.chunks()[chunk];
  store->run({.direction = storage::Direction::write,
              .field = field,
              .subject = chunk,
              .memory = const_cast<std::byte*>(memory),  // a write only reads it
              .bytes = field == Field::weight ? weight_bytes(rule, it) : state_bytes(rule, it),
              .version = version});
}

void Run::restore_subspaces() {
  const auto rule = plan_.description.rule();
  for (const auto& chunk : plan_.layout.chunks()) {
    if (chunk.subspace.rank == 0) continue;
    const auto* state = tiers->resident_state(chunk.id);
    if (state == nullptr) {
      tiers->load(chunk.id, nullptr, scratch().data());
      state = scratch().data();
    }
    subspaces->restore(plan_.layout.spans(chunk.id).front().tensor, state + state_fields(rule, chunk).pair);
  }
}

// ---- what is to be left

void Run::publish(std::uint64_t version) {
  for (std::size_t c = 0; c < plan_.layout.chunks().size(); ++c) {
    if (store->published(c, version)) continue;
    write_resident(c, version);
    store->publish(c, version);
  }
}

void Run::write_resident(std::size_t chunk, std::uint64_t version) {
  if (tiers->on_device(chunk)) publish_from_device(chunk, version);
  if (const auto* weight = tiers->resident_weight(chunk)) write(Field::weight, chunk, weight, version);
  const bool stateful = store->place_bytes(Field::state, chunk) > 0;
  if (const auto* state = tiers->resident_state(chunk); state != nullptr && stateful) {
    write(Field::state, chunk, state, version);
  }
}

/// Through the memory above what is resident.
void Run::publish_from_device(std::size_t chunk, std::uint64_t version) {
  const auto rule = plan_.description.rule();
  const auto& it = plan_.layout.chunks()[chunk];
  auto* const weight = scratch().data();
  auto* const state = weight + weight_bytes(rule, it);
  tiers->load(chunk, weight, state);
  write(Field::weight, chunk, weight, version);
  if (has_state(it.learning)) write(Field::state, chunk, state, version);
}

void Run::commit(std::uint64_t step, bool skipped, const optim::Step& update, std::string_view payload) {
  const auto previous = held_ ? (held_->skipped ? held_->previous : held_->step) : 0;
  held_ = {step, previous, skipped, optim::encode(*plan_.description.optimizer, update), std::string(payload)};
  if (!journal->keeps_gradients()) return;  // until a checkpoint needs it
  const auto before = committed_;
  commit_held();
  // What is not durable yet is at most this step.
  const Clocked clocked(waited_);
  if (before) journal->wait_durable(*before);
}

void Run::commit_held() {
  if (!held_) return;
  journal->commit({.step = held_->step,
                   .previous = held_->previous,
                   .skipped = held_->skipped,
                   .update = held_->update,
                   .payload = std::as_bytes(std::span(held_->payload)),
                   .gradients = gradient_ids_});
  committed_ = held_->step;
  held_.reset();
}

std::vector<std::byte> Run::checkpoint(std::uint64_t version) {
  publish(version);
  commit_held();
  return journal::encode(journal->checkpoint());
}

void Run::release(std::span<const std::byte> manifest) {
  journal->unpin(journal::decode_manifest(manifest, journal->identity()));
}

std::vector<std::byte> Run::leave(const journal::JournalSpec& spec, const journal::Commit& commit) {
  if (!store) throw Error(ErrorCode::bad_input, "nothing of this run lies on a storage path");
  store->drop_passing();
  check_room();
  journal::Manifest out{.identity = journal::MetadataLayout(spec).identity(), .commit = commit, .snapshots = {}};
  const auto on = pointers(paths);
  for (std::size_t c = 0; c < plan_.layout.chunks().size(); ++c) {
    write_resident(c, commit.applied());
    out.snapshots.push_back(store->stored(c, commit.applied(), on));
  }
  flush_paths();
  for (const auto& path : paths) path->remove_on_close(false);
  return journal::encode(out);
}

void Run::take_back() noexcept {
  if (journal) return;
  for (const auto& path : paths) path->remove_on_close();
}

void Run::check_room() const {
  Bytes needed = 0;
  for (std::size_t c = 0; c < plan_.layout.chunks().size(); ++c) {
    for (const auto field : {Field::weight, Field::state}) {
      if (!store->written(field, c)) needed += store->place_bytes(field, c);
    }
  }
  if (needed <= pool->free()) return;
  throw Error(ErrorCode::does_not_fit,
              text("what this run keeps in memory takes ", human(needed), " of the storage paths, of whose volumes ",
                   human(pool->free()), " are free"));
}

void Run::flush_paths() {
  for (const auto& path : paths) {
    storage::Waiter waiter;
    path->sync(&storage::Waiter::done, &waiter, 0);
    waiter.wait();
  }
}

void Run::wait_durable() {
  if (journal && journal->keeps_gradients() && committed_) journal->wait_durable(*committed_);
}

}  // namespace spillway::execute
