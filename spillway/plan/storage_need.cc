#include "spillway/plan/storage_need.h"

#include <algorithm>

#include "spillway/plan/piece_staging.h"

namespace spillway::plan {
namespace {

/// Share of the snapshots of a step that may wait for a flush.
constexpr Bytes kSpareShare = 4;
/// Bytes that places on paths are made of (storage::kExtentAlignment).
constexpr Bytes kPiece = 1 * MiB;

class Count {
 public:
  Count(const Description& description, const state::Layout& layout, const Placement& placement, Durability durability)
      : description_(description),
        layout_(layout),
        placement_(placement),
        durability_(durability),
        rule_(description.rule()),
        bytes_(state::field_bytes(description.weight_dtype)) {}

  StorageNeed run(const std::vector<Activation>& activations, std::uint32_t checkpoints) {
    for (Index c = 0; c < layout_.chunks().size(); ++c) add_chunk(c);
    if (durability_ == Durability::none) add_staging();
    for (const auto& it : activations) add(traits(it.what.kind).name, whole(it.bytes));
    if (durability_ == Durability::none) return std::move(out_);
    if (durability_ == Durability::step) {
      add_rows();
      out_.spare = std::max(snapshots_per_step_ / kSpareShare, 4 * largest_snapshot_);
      out_.least_spare = 3 * largest_snapshot_;
    }
    out_.breakdown["durability"] += durable_ + checkpoints * snapshots_ + out_.spare;
    return std::move(out_);
  }

 private:
  void add(const char* name, Bytes bytes) { out_.breakdown[name] += bytes; }
  [[nodiscard]] Bytes whole(Bytes bytes) const { return round_up(bytes, kPiece); }

  void add_chunk(Index c) {
    const auto& chunk = layout_.chunks()[c];
    if (!description_.has(layout_, chunk)) return;
    const auto weight = whole(weight_bytes(rule_, chunk)), state = whole(state_bytes(rule_, chunk));
    const bool keeps_weight = placement_[c].weight.in_memory(), keeps_state = placement_[c].state.in_memory();
    if (!keeps_weight) add("weight", weight);
    if (!state::is_trainable(chunk.training)) {  // its one snapshot, which every checkpoint shares
      if (keeps_weight) durable_ += weight;
      return;
    }
    if (!keeps_state) add("state", state);
    durable_ += (keeps_weight ? weight : 0) + (keeps_state ? state : 0);
    // Its snapshot is written now and then; the weight that passes read is another copy.
    if (!keeps_weight && keeps_state && durability_ == Durability::step) durable_ += weight;
    snapshots_ += weight + state;
    snapshots_per_step_ += (weight + state) / (keeps_state ? kSnapshotPeriod : 1);
    largest_snapshot_ = std::max(largest_snapshot_, weight + state);
    add_gradient(c, whole(grad_bytes(rule_, chunk)));
  }

  void add_gradient(Index c, Bytes bytes) {
    if (!has_dense_grad(description_, layout_, c)) return;
    const bool on_path = !placement_[c].gradient.in_memory();
    if (on_path) add("grad", bytes);
    if (durability_ != Durability::step) return;
    const Bytes versions = placement_[c].state.in_memory() ? kSnapshotPeriod + 2 : 2;
    durable_ += (versions - (on_path ? 1 : 0)) * bytes;
  }

  /// A piece that leaves memory is written before the one that takes its place gives up its own.
  void add_staging() {
    bool near = false, far = false;
    for (const auto& chunk : layout_.chunks()) {
      if (!is_movable(description_, chunk)) continue;
      (placement_[chunk.id].weight.in_memory() ? near : far) = true;
    }
    if (!near || !far) return;
    const auto staging = piece_staging(description_, layout_);
    add("weight", staging.pairs * whole(staging.pair / 2));
  }

  void add_rows() {
    const auto* table = layout_.embedding();
    if (table == nullptr || table->trainable_chunks == 0) return;
    const auto rows = std::min(description_.rows_of(layout_, *table), description_.all_tokens());
    durable_ += (kSnapshotPeriod + 2) * whole(sparse_bytes(rows, table->columns, bytes_.grad));
  }

  const Description& description_;
  const state::Layout& layout_;
  const Placement& placement_;
  const Durability durability_;
  const state::UpdateRule rule_;
  const state::FieldBytes bytes_;
  StorageNeed out_;
  Bytes durable_ = 0, snapshots_ = 0, snapshots_per_step_ = 0, largest_snapshot_ = 0;
};

}  // namespace

StorageNeed storage_need(const Description& description, const state::Layout& layout, const Placement& placement,
                         const std::vector<Activation>& activations, Durability durability, std::uint32_t checkpoints) {
  return Count(description, layout, placement, durability).run(activations, checkpoints);
}

}  // namespace spillway::plan
