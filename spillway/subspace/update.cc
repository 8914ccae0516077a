#include "spillway/subspace/update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "spillway/device/typed.h"
#include "spillway/kernels/moments.h"
#include "spillway/sink/arithmetic.h"
#include "spillway/subspace/transfer.h"

namespace spillway::subspace {
namespace {

using optim::Reduced;

/// Elements of a tile of S and, about, of the matrix: what one thread does at a time.
constexpr std::uint64_t kTile = 64 * 1024;
/// Elements of S whose gradient is widened at a time: whole blocks of codes.
constexpr std::uint64_t kPiece = 4096;
static_assert(kPiece % kernels::kQuantBlock == 0 && kTile % kPiece == 0);

/// A tile of the matrix is whole groups of P's rows. A row of a scattered P is a group.
std::uint64_t groups_of(const Reduced& it) noexcept {
  return is_published(it) ? it.rows : it.rank / it.nonzeros;
}

/// So many.
std::uint64_t tile_groups(const Reduced& it) noexcept {
  return std::max<std::uint64_t>(1, kTile * groups_of(it) / (it.rows * it.columns));
}

const optim::RefitRecord& record(const std::byte* projectors) noexcept {
  return *reinterpret_cast<const optim::RefitRecord*>(projectors);
}

kernels::Projector view(const std::byte* projectors, const optim::ProjectorField& field, std::uint64_t rows,
                        const Reduced& it) noexcept {
  const auto* const places = reinterpret_cast<const std::uint32_t*>(projectors + field.places());
  return {reinterpret_cast<const float*>(projectors + field.first), rows, it.rank, it.nonzeros,
          is_published(it) ? places : nullptr};
}

subspace::Projectors copied(const std::byte* projectors, const Reduced& it) {
  auto out = shape_of(it);
  get_pair(it, projectors, out);
  return out;
}

void encode(const float* values, std::size_t moment, const state::Located& to) {
  const auto& at = to.span;
  traits(to.form.moments).encode(moment, values, at.moments[moment], at.scales[moment], at.n);
}

}  // namespace

Projectors shape_of(const Reduced& it) {
  const auto places = is_published(it) ? Places::scattered : Places::blocks;
  return {Projector(it.rows, it.rank, it.nonzeros, places), Projector(it.columns, it.rank, it.nonzeros, places)};
}

void get_pair(const Reduced& it, const std::byte* projectors, Projectors& pair) {
  const auto fields = optim::projector_fields(it);
  for (const auto& [side, field] : {std::pair(&pair.p, fields.p), std::pair(&pair.q, fields.q)}) {
    std::memcpy(side->values().data(), projectors + field.first, field.value_bytes());
    if (side->is_scattered()) std::memcpy(side->places().data(), projectors + field.places(), field.place_bytes());
  }
}

void put_pair(const Reduced& it, const Projectors& pair, std::byte* projectors) {
  const auto fields = optim::projector_fields(it);
  for (const auto& [side, field] : {std::pair(&pair.p, fields.p), std::pair(&pair.q, fields.q)}) {
    std::memcpy(projectors + field.first, side->values().data(), field.value_bytes());
    if (side->is_scattered()) std::memcpy(projectors + field.places(), side->places().data(), field.place_bytes());
  }
}

kernels::UpdateStep step_inside(const kernels::UpdateStep& step, const Reduced& it, const optim::RefitRecord& record) {
  auto out = step;
  out.weight_decay = 0;
  if (!is_published(it)) {
    out.learning_rate *=
        std::sqrt(static_cast<double>(it.rows) * static_cast<double>(it.columns)) / static_cast<double>(it.rank);
  }
  out.step -= static_cast<std::int64_t>(record.begun);
  return out;
}

bool made_with(const optim::RefitRecord& before, const optim::RefitRecord& after) noexcept {
  return before.refits == 0 && after.refits > 0 && before.begun == after.begun;
}

float kept_by(const kernels::UpdateStep& step, bool decays) noexcept {
  return decays ? static_cast<float>(1 - step.learning_rate * step.weight_decay) : 1.0F;
}

kernels::Expansion expansion_of(const Reduced& it, const std::byte* projectors, const float* delta,
                                const kernels::UpdateStep& step) noexcept {
  const auto fields = optim::projector_fields(it);
  return {view(projectors, fields.p, it.rows, it), view(projectors, fields.q, it.columns, it), delta, step.seed,
          step.step};
}

void carry_over(const Reduced& it, const std::byte* before, const std::byte* after, std::size_t moment,
                std::span<float> values) {
  const auto from = copied(before, it), to = copied(after, it);
  moment == 0 ? subspace::carry_first(from, to, values) : subspace::carry_second(from, to, values);
}

SubspaceUpdate::SubspaceUpdate(const state::Layout& layout, const state::UpdateRule& rule)
    : layout_(layout), rule_(rule) {
  std::uint64_t most = 0;
  for (const auto& tensor : layout.tensors()) most = std::max(most, tensor.reduced.elements());
  delta_.resize(most);
}

void SubspaceUpdate::prepare(const state::Chunk& chunk, const state::GroupPointers& groups) {
  auto* const ours = groups.state + state_fields(rule_, chunk).auxiliary;
  const auto* const given = groups.grad + gradient_value_bytes(rule_, chunk);
  const auto bytes = optim::projector_fields(chunk.reduced).bytes;
  if (made_with(record(ours), record(given))) std::memcpy(ours, given, bytes);
  if (groups.change != nullptr) {
    std::memcpy(groups.change + change_value_bytes(rule_, chunk), ours, bytes);
  }
}

void SubspaceUpdate::finish(const state::Chunk& chunk, const state::GroupPointers& groups) {
  auto* const ours = groups.state + state_fields(rule_, chunk).auxiliary;
  const auto* const given = groups.grad + gradient_value_bytes(rule_, chunk);
  const auto before = record(ours), now = record(given);
  if (before.begun != now.begun) {
    begin(chunk, groups);
  } else if (before.refits != now.refits) {
    carry(chunk, groups);
  }
  std::memcpy(ours, given, before.refits != now.refits ? optim::projector_fields(chunk.reduced).bytes : sizeof(now));
}

/// Moments as those of the first step.
void SubspaceUpdate::begin(const state::Chunk& chunk, const state::GroupPointers& groups) {
  const auto n = chunk.reduced.elements();
  const auto at = locate_gradient(rule_, chunk, groups, 0, n);
  const auto values = std::span(delta_).first(n);
  std::ranges::fill(values, 0.0F);
  for (std::size_t m = 0; m < rule_.moments(); ++m) encode(values.data(), m, at);
}

void SubspaceUpdate::carry(const state::Chunk& chunk, const state::GroupPointers& groups) {
  const auto& it = chunk.reduced;
  const auto* const before = groups.state + state_fields(rule_, chunk).auxiliary;
  const auto* const after = groups.grad + gradient_value_bytes(rule_, chunk);
  const auto at = locate_gradient(rule_, chunk, groups, 0, it.elements());
  const auto values = std::span(delta_).first(it.elements());
  for (std::size_t m = 0; m < rule_.moments(); ++m) {
    traits(at.form.moments).decode(m, at.span.moments[m], at.span.scales[m], values.data(), at.span.n);
    carry_over(it, before, after, m, values);
    encode(values.data(), m, at);
  }
}

std::size_t SubspaceUpdate::first_tiles(const state::Chunk& chunk) noexcept {
  return ceil_div(chunk.reduced.elements(), kTile);
}

void SubspaceUpdate::run_first(const state::Chunk& chunk, const state::GroupPointers& groups,
                               const kernels::UpdateStep& step, std::size_t tile) {
  const auto begin = tile * kTile, end = std::min(begin + kTile, chunk.reduced.elements());
  const auto own = step_inside(step, chunk.reduced, record(groups.state + state_fields(rule_, chunk).auxiliary));
  auto* const delta = change_of(chunk, groups);
  std::array<float, kPiece> gradient;  // NOLINT: filled below
  for (auto first = begin; first < end; first += kPiece) {
    const auto n = std::min(kPiece, end - first);
    auto at = locate_gradient(rule_, chunk, groups, first, n);
    device::widen(rule_.type, at.span.grad, gradient.data(), n);
    std::fill_n(delta + first, n, 0.0F);
    at.span.weight = reinterpret_cast<std::byte*>(delta + first);
    at.span.grad = reinterpret_cast<const std::byte*>(gradient.data());
    kernels::update(at.form, at.span, own);
    round_change(chunk, groups, first, n);
  }
}

float* SubspaceUpdate::change_of(const state::Chunk& chunk, const state::GroupPointers& groups) noexcept {
  const bool rounds = traits(change_type(rule_, chunk)).rounds;
  return groups.change != nullptr && !rounds ? reinterpret_cast<float*>(groups.change) : delta_.data();
}

/// Rounds the change to the type that it is sent in, whether or not it is sent.
void SubspaceUpdate::round_change(const state::Chunk& chunk, const state::GroupPointers& groups, std::uint64_t first,
                                  std::uint64_t n) noexcept {
  const auto type = change_type(rule_, chunk);
  if (!traits(type).rounds) return;
  std::array<std::uint16_t, kPiece> rounded;  // NOLINT: filled below
  auto* const bytes = reinterpret_cast<std::byte*>(rounded.data());
  auto* const delta = delta_.data() + first;
  device::convert(kernels::Encoding::fp32, reinterpret_cast<const std::byte*>(delta), n, 0, n, type, bytes);
  device::widen(type, bytes, delta, n);
  if (groups.change != nullptr) std::memcpy(groups.change + first * sizeof(std::uint16_t), bytes, n * 2);
}

std::size_t SubspaceUpdate::tiles(const state::Chunk& chunk) noexcept {
  return ceil_div(groups_of(chunk.reduced), tile_groups(chunk.reduced));
}

void SubspaceUpdate::run(const state::Chunk& chunk, const state::GroupPointers& groups, const kernels::UpdateStep& step,
                         std::size_t tile) {
  const auto& it = chunk.reduced;
  const auto& span = layout_.spans(chunk.id).front();
  const auto keep = kept_by(step, layout_.tensors()[span.tensor].spec.decay);
  const auto expansion =
      expansion_of(it, groups.state + state_fields(rule_, chunk).auxiliary, change_of(chunk, groups), step);
  const auto first_row = [&](std::uint64_t group) { return is_published(it) ? group : expansion.p.first(group); };
  const auto first = tile * tile_groups(it), last = std::min(first + tile_groups(it), groups_of(it));
  const auto row = first_row(first), rows = first_row(last) - row;
  const auto at = locate(rule_, chunk, span, groups, row * it.columns, rows * it.columns);
  thread_local std::vector<float> work;  // grows to its size and stays
  work.resize(std::max(work.size(), kernels::apply_work(expansion)));
  kernels::apply(form_of(rule_).weights, expansion, keep, at.span, row * it.columns, work.data());
}

}  // namespace spillway::subspace
