#include "spillway/execute/hot_pieces.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "spillway/plan/piece_staging.h"

namespace spillway::execute {
namespace {

/// Share of the counts of earlier periods that a choice keeps. Counts that decay by powers of a half, of steps that are
/// long past less than of recent ones, are those of the LRFU policy (Lee and others, IEEE Transactions on Computers 50
/// (12), 2001).
constexpr double kKept = 0.5;
/// Share of the steps by which two counts differ at least: a swap costs a read.
constexpr double kLeastShare = 0.125;
/// Standard deviations by which two counts differ at least: even routing differs by chance, too.
constexpr double kDeviations = 2;
constexpr unsigned kNearest = 2;

/// Variance of the number of `steps` that ask for a piece, of which `count` did.
double variance(double count, double steps) {
  return count * (1 - count / steps);
}

/// Nearness of a home to the passes: paths have 0.
unsigned nearness(const plan::Residence& home) {
  if (home.on_device() || home.has_device_copy()) return kNearest;
  return home.in_memory() ? 1 : 0;
}

}  // namespace

HotPieces::HotPieces(const plan::Description& description, const state::Layout& layout,
                     const plan::Placement& placement, std::uint64_t period)
    : placement_(placement), period_(period), steps_(static_cast<double>(period)) {
  std::size_t number = 0;
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    if (layout.tensors()[t].spec.apart) add(description, layout, t, number++);
  }
}

/// Lists the pieces of a tensor that can move. Shards may cut a piece into other chunks than the rest: it stays.
void HotPieces::add(const plan::Description& description, const state::Layout& layout, std::size_t tensor,
                    std::size_t number) {
  const auto& of = layout.tensors()[tensor];
  const auto& block = layout.blocks()[of.block];
  Tensor out{.tensor = tensor, .number = number, .pieces = std::vector<plan::Range>(of.spec.pieces)};
  for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
    const auto& chunk = layout.chunks()[c];
    const auto& spans = layout.spans(c);
    if (spans.empty() || spans.front().tensor != tensor || !plan::is_movable(description, chunk)) continue;
    auto& piece = out.pieces[spans.front().tensor_first / of.piece()];
    if (piece.count == 0) piece.first = static_cast<plan::Index>(c);
    ++piece.count;
  }
  const auto is_listed = [](const plan::Range& piece) { return piece.count > 0; };
  const auto first = std::ranges::find_if(out.pieces, is_listed);
  if (first == out.pieces.end()) return;
  const auto model = *first;
  const auto is_alike = [&](const plan::Range& piece) {
    bool same = piece.count == model.count;
    for (plan::Index i = 0; same && i < model.count; ++i) {
      same = layout.chunks()[piece.first + i].elements == layout.chunks()[model.first + i].elements;
    }
    return same;
  };
  for (auto& piece : out.pieces) piece.count = is_alike(piece) ? piece.count : 0;
  out.before.resize(of.spec.pieces);
  for (std::size_t i = 0; i < of.spec.pieces; ++i) {
    out.counts.push_back(of.spec.share_of(i) * static_cast<double>(period_));
  }
  if (has_several_places(out)) tensors_.push_back(std::move(out));
}

bool HotPieces::has_several_places(const Tensor& tensor) const {
  bool near = false, far = false;
  for (const auto& piece : tensor.pieces) {
    if (piece.count == 0) continue;
    const auto rank = nearness(placement_[piece.first].weight);
    near = near || rank > 0;
    far = far || rank < kNearest;
  }
  return near && far;
}

bool HotPieces::is_due(const AskedPieces& asked) const {
  return period_ > 0 && !tensors_.empty() && asked.training_steps() - chosen_ >= period_;
}

std::vector<PieceSwap> HotPieces::choose(const AskedPieces& asked, const WeightSlots& slots) {
  steps_ = kKept * steps_ + static_cast<double>(asked.training_steps() - chosen_);
  chosen_ = asked.training_steps();
  const auto counted = asked.steps();
  std::vector<PieceSwap> out;
  for (auto& tensor : tensors_) {
    const auto& steps = counted[tensor.number].steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      tensor.counts[i] = kKept * tensor.counts[i] + static_cast<double>(steps[i] - tensor.before[i]);
    }
    tensor.before = steps;
    choose(tensor, slots, out);
  }
  return out;
}

/// True if steps ask for `far` so much more often than for `near` that it is worth a read, and no chance.
bool HotPieces::pays(double far, double near) const {
  const auto more = far - near;
  const auto spread = variance(far, steps_) + variance(near, steps_);
  return more >= 1 + kLeastShare * steps_ && more * more >= kDeviations * kDeviations * spread;
}

/// From the nearest places on: the piece there that the fewest steps asked for, and the piece farther away that the
/// most did.
void HotPieces::choose(const Tensor& tensor, const WeightSlots& slots, std::vector<PieceSwap>& out) const {
  std::vector<unsigned> rank(tensor.pieces.size());
  std::vector<std::size_t> movable;
  for (std::size_t i = 0; i < rank.size(); ++i) {
    if (tensor.pieces[i].count == 0) continue;
    movable.push_back(i);
    rank[i] = nearness(placement_[slots.slot_of(tensor.pieces[i].first)].weight);
  }
  const auto count = [&](std::size_t piece) { return tensor.counts[piece]; };
  for (auto nearest = kNearest; nearest > 0; --nearest) {
    std::vector<std::size_t> near, far;
    for (const auto i : movable) {
      if (rank[i] == nearest) near.push_back(i);
      if (rank[i] < nearest) far.push_back(i);
    }
    std::ranges::stable_sort(near, {}, count);
    std::ranges::stable_sort(far, std::ranges::greater{}, count);
    for (std::size_t i = 0; i < std::min(near.size(), far.size()); ++i) {
      if (!pays(count(far[i]), count(near[i]))) break;
      std::swap(rank[far[i]], rank[near[i]]);
      out.push_back({tensor.tensor, tensor.pieces[far[i]], tensor.pieces[near[i]]});
    }
  }
}

}  // namespace spillway::execute
