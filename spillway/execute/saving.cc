#include "spillway/execute/saving.h"

#include "spillway/base/error.h"
#include "spillway/optim/step.h"

namespace spillway::execute {

Saving::Saving(const RunPlan& plan, RunStorage& storage, Tiers& tiers, std::span<std::byte> scratch,
               std::optional<std::uint64_t> committed)
    : plan_(plan),
      rule_(plan.description.rule()),
      storage_(storage),
      tiers_(tiers),
      scratch_(scratch),
      committed_(committed) {
  if (!durable()) return;
  const auto& spec = storage.run_journal()->spec();
  const auto count = GradientIds(plan.description, plan.layout).count();
  for (std::uint32_t gradient = 0; gradient < count; ++gradient) {
    if (!journal::elsewhere(spec, spec.gradients[gradient])) gradients_.push_back(gradient);
  }
}

void Saving::publish_snapshots(std::uint64_t version) {
  auto& store = *storage_.store();
  for (const auto c : plan_.ownership.mine()) {
    if (store.published(c, version)) continue;
    write(c, version);
    store.publish(c, version);
  }
}

/// Writes the groups of a chunk that are not on a path.
void Saving::write(std::size_t chunk, std::uint64_t version) {
  const auto& it = plan_.layout.chunks()[chunk];
  auto& store = *storage_.store();
  if (tiers_.on_device(chunk)) write_from_device(chunk, version);
  if (const auto* weight = tiers_.resident_weight(chunk)) {
    store.write(plan::ObjectKind::weight, chunk, {weight, weight_bytes(rule_, it)}, version);
  }
  const bool stateful = store.place_bytes(plan::ObjectKind::state, chunk) > 0;
  if (const auto* state = tiers_.resident_state(chunk); state != nullptr && stateful) {
    store.write(plan::ObjectKind::state, chunk, {state, state_bytes(rule_, it)}, version);
  }
}

/// Through the scratch memory.
void Saving::write_from_device(std::size_t chunk, std::uint64_t version) {
  const auto& it = plan_.layout.chunks()[chunk];
  const auto weight = scratch_.first(weight_bytes(rule_, it));
  const auto state = scratch_.subspan(weight.size(), state_bytes(rule_, it));
  tiers_.load(chunk, weight.data(), state.data());
  storage_.store()->write(plan::ObjectKind::weight, chunk, weight, version);
  if (has_state(it.training)) storage_.store()->write(plan::ObjectKind::state, chunk, state, version);
}

void Saving::commit(const Commitment& of, std::string_view payload) {
  held_ = commit_of(of, held_ ? held_->applied() : 0, payload);
  if (!storage_.run_journal()->keeps_gradients()) return;
  const auto before = committed_;
  commit_held();
  // At most this step is not durable yet.
  const Clocked clocked(waited_);
  if (before) storage_.run_journal()->wait_durable(*before);
}

/// `previous`: the last step before it that changed something, of those that the journal was not told of.
journal::Commit Saving::commit_of(const Commitment& of, std::uint64_t previous, std::string_view payload) const {
  const auto bytes = std::as_bytes(std::span(payload));
  return {.step = of.at.step,
          .previous = previous,
          .skipped = of.skipped,
          .update = optim::encode(*plan_.description.optimizer, of.update),
          .payload = {bytes.begin(), bytes.end()}};
}

void Saving::commit_held() {
  if (!held_) return;
  storage_.run_journal()->commit({.step = held_->step,
                                  .previous = held_->previous,
                                  .skipped = held_->skipped,
                                  .update = held_->update,
                                  .payload = held_->payload,
                                  .gradients = gradients_});
  committed_ = held_->step;
  held_.reset();
}

std::vector<std::byte> Saving::checkpoint(std::uint64_t version) {
  publish_snapshots(version);
  commit_held();
  return journal::encode(storage_.run_journal()->checkpoint());
}

void Saving::release(std::span<const std::byte> manifest) {
  storage_.run_journal()->unpin(journal::decode_manifest(manifest, storage_.run_journal()->identity()));
}

void Saving::wait_durable() {
  auto* journal = storage_.run_journal();
  if (journal != nullptr && journal->keeps_gradients() && committed_) journal->wait_durable(*committed_);
}

// ---- runs that are not durable

std::vector<std::byte> Saving::leave(const Commitment& of, std::string_view payload) {
  auto* store = storage_.store();
  if (store == nullptr) throw Error(ErrorCode::bad_input, "nothing of this run lies on a storage path");
  store->drop_transient();
  check_room();
  const auto& volumes = storage_.volumes();
  const auto spec = journal_spec(plan_.description, plan_.layout, plan_.ownership, plan::Durability::checkpoint,
                                 volumes.run, volumes.places.size());
  journal::Manifest out{.identity = journal::MetadataLayout(spec).identity(),
                        .commit = commit_of(of, of.at.applied, payload),
                        .snapshots = {}};
  for (std::uint32_t c = 0; c < spec.chunks.size(); ++c) {
    if (spec.chunks[c].elsewhere) {
      out.snapshots.push_back({c, of.at.applied, {}});
      continue;
    }
    write(c, of.at.applied);
    out.snapshots.push_back(store->stored(c, of.at.applied, storage_.paths()));
  }
  for (auto* path : storage_.paths()) path->sync();
  storage_.remove_on_close(false);
  return journal::encode(out);
}

void Saving::take_back() noexcept {
  if (!durable()) storage_.remove_on_close(true);
}

void Saving::check_room() const {
  const auto& store = *storage_.store();
  Bytes needed = 0;
  for (const auto c : plan_.ownership.mine()) {
    for (const auto kind : {plan::ObjectKind::weight, plan::ObjectKind::state}) {
      if (!store.written(kind, c)) needed += store.place_bytes(kind, c);
    }
  }
  const auto free = storage_.pool()->free();
  if (needed <= free) return;
  throw Error(ErrorCode::does_not_fit, text("what this run keeps in memory takes ", human(needed),
                                            " of the storage paths, of whose volumes ", human(free), " are free"));
}

}  // namespace spillway::execute
