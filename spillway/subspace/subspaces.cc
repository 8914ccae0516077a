#include "spillway/subspace/subspaces.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/subspace/bias.h"
#include "spillway/subspace/published.h"
#include "spillway/subspace/scattered.h"
#include "spillway/subspace/update.h"

namespace spillway::subspace {
namespace {

/// The most that `of` says of any matrix.
template <class Of>
std::size_t most(const state::Layout& layout, const Of& of) {
  std::size_t out = 0;
  for (const auto& tensor : layout.tensors()) {
    if (tensor.reduced.any()) out = std::max<std::size_t>(out, of(tensor.reduced));
  }
  return out;
}

std::size_t half_elements(const state::Layout& layout) {
  return most(layout, [](const optim::Reduced& it) { return it.rows * it.rank; });
}

void run_all(subspace::Refit& refit, const device::ParallelFor& parallel_for) {
  for (unsigned part = 0; part < subspace::Refit::kParts; ++part) {
    parallel_for.run(refit.tiles(part), [&](std::size_t tile) { refit.run(part, tile); });
  }
}

}  // namespace

Subspaces::Subspaces(const plan::Description& description, const state::Layout& layout)
    : description_(description),
      layout_(layout),
      matrices_(layout.tensors().size()),
      pass_(half_elements(layout)),
      lane_(half_elements(layout)) {
  std::uint64_t number = 0;
  for (std::size_t t = 0; t < matrices_.size(); ++t) {
    const auto& it = layout.tensors()[t].reduced;
    if (it.rank == 0) continue;
    matrices_[t].emplace(PairState{.number = number++,
                                   .published = is_published(it),
                                   .projectors = shape_of(it),
                                   .next = shape_of(it),
                                   .kept = {},
                                   .record = {},
                                   .before = {},
                                   .told = {}});
    any_ = true;
  }
  if (!any_) return;
  const auto room = most(layout, [](const optim::Reduced& it) { return it.rows * it.columns; });
  for (std::size_t i = 0; i < plan::kGradientsLeft; ++i) rooms_.emplace_back(room);
}

const PairState& Subspaces::at(std::size_t tensor) const {
  if (tensor < matrices_.size() && matrices_[tensor]) return *matrices_[tensor];
  throw Error(ErrorCode::bad_input, text("tensor number ", tensor, " does not learn in a subspace"));
}

PairState& Subspaces::at(std::size_t tensor) {
  return const_cast<PairState&>(std::as_const(*this).at(tensor));
}

void Subspaces::restore(std::size_t tensor, const std::byte* projectors) {
  auto& it = at(tensor);
  std::memcpy(&it.kept, projectors, sizeof(it.kept));
  get_pair(layout_.tensors()[tensor].reduced, projectors, it.projectors);
  check_places(it.projectors.p);
  check_places(it.projectors.q);
  it.record = it.kept;
  it.refitted = false;
  ++it.version;
}

void Subspaces::begin(std::int64_t updates, double scale) {
  updates_ = updates;
  scale_ = scale;
  for (auto& it : matrices_) {
    if (it) it->begin();
  }
}

void Subspaces::open(std::size_t tensor) {
  auto& it = at(tensor);
  it.open();
  it.due = is_due(it);
}

bool Subspaces::refits_in_pass(std::size_t tensor) const {
  const auto& it = at(tensor);
  return !it.taken && !it.refitted && is_due(it);
}

/// Whether the pair is the first, and made before S is.
bool Subspaces::refits_first(const PairState& it) const noexcept {
  return description_.virtual_ranks == 1 && it.record.refits == 0;
}

bool Subspaces::is_due(const PairState& it) const {
  if (it.record.refits == 0) return true;
  if (updates_ <= 0) return false;
  const auto& checks = description_.refits;
  const auto updates = static_cast<std::uint64_t>(updates_);
  if (subspace::rotates(checks.rotate_every, updates, it.number)) return true;
  return updates % checks.check_every == 0 && (it.published || it.error() > checks.threshold);
}

std::size_t Subspaces::elements(std::size_t tensor) const {
  const auto& shape = layout_.tensors()[tensor].reduced;
  return shape.rows * shape.columns;
}

void Subspaces::check(std::size_t tensor, std::size_t given) const {
  if (given == elements(tensor)) return;
  const auto& shape = layout_.tensors()[tensor].reduced;
  throw Error(ErrorCode::bad_input, text("a gradient of ", given, " elements for ", layout_.tensors()[tensor].spec.name,
                                         ", which is ", shape.rows, " x ", shape.columns));
}

void Subspaces::refit(std::size_t tensor, std::span<const float> gradient, const device::ParallelFor& parallel_for) {
  auto& it = at(tensor);
  check(tensor, gradient.size());
  it.taken = true;
  if (refits_first(it)) return refit_first(it, gradient, parallel_for);
  it.begin_later(description_.refits.rotate_every > 0, updates_);
  ++counts_.inside;
  make(it, it.next, gradient, parallel_for);
}

void Subspaces::make(const PairState& it, subspace::Projectors& pair, std::span<const float> gradient,
                     const device::ParallelFor& parallel_for) {
  if (it.published) return static_cast<void>(pair = learned(it, gradient));
  pair = it.projectors;
  pass_.begin(pair, gradient);
  run_all(pass_, parallel_for);
}

subspace::Projectors Subspaces::learned(const PairState& it, std::span<const float> gradient) const {
  return learn(it.projectors, {description_.seed, it.number, it.drawn}, gradient);
}

bool Subspaces::looks(std::size_t tensor) const {
  const auto& it = at(tensor);
  return it.published && !refits_first(it);
}

bool Subspaces::look(std::size_t tensor, std::span<const float> gradient) {
  auto& it = at(tensor);
  check(tensor, gradient.size());
  it.taken = true;
  if (!subspace::finite(gradient)) return false;
  if (it.kept.refits == 0) return true;
  it.looked = true;
  it.record.missed = missed_share(it.projectors, gradient);
  return it.record.missed > description_.refits.threshold;
}

void Subspaces::refit_first(PairState& it, std::span<const float> gradient, const device::ParallelFor& parallel_for) {
  if (!subspace::finite(gradient)) return;
  it.drawn = static_cast<std::uint64_t>(it.kept.refits);
  make(it, it.projectors, gradient, parallel_for);
  it.record = {.refits = 1, .begun = it.kept.begun};
  if (it.published) it.record.missed = missed_share(it.projectors, gradient);
  it.refitted = it.first = true;
  ++it.version;
}

std::span<float> Subspaces::leave(std::size_t tensor) {
  auto& it = at(tensor);
  it.taken = true;
  if (refits_first(it)) return {};
  for (std::size_t room = 0; room < rooms_.size(); ++room) {
    if (taken_[room].load(std::memory_order_acquire)) continue;
    taken_[room].store(true, std::memory_order_relaxed);
    it.begin_later(description_.refits.rotate_every > 0, updates_);
    it.room = room;
    ++counts_.beside;
    return std::span(rooms_[room]).first(elements(tensor));
  }
  return {};
}

void Subspaces::begin_refit(std::size_t tensor) {
  auto& it = at(tensor);
  if (!it.is_left()) return;
  learning_ = tensor;
  if (it.published) return;
  it.next = it.projectors;
  lane_.begin(it.next, calibration(tensor));
}

std::span<const float> Subspaces::calibration(std::size_t tensor) const {
  return std::span(rooms_[at(tensor).room]).first(elements(tensor));
}

std::size_t Subspaces::refit_tiles(std::size_t tensor, unsigned part) const {
  const auto& it = at(tensor);
  if (!it.is_left()) return 0;
  if (it.published) return part == 0 ? 1 : 0;
  return lane_.tiles(part);
}

void Subspaces::refit(unsigned part, std::size_t tile) {
  auto& it = at(learning_);
  if (!it.published) return lane_.run(part, tile);
  it.next = learned(it, calibration(learning_));
}

void Subspaces::end_refit(std::size_t tensor, std::byte* projectors) {
  auto& it = at(tensor);
  const auto& refitted = it.first ? it.projectors : it.next;
  if (projectors != nullptr) put_pair(layout_.tensors()[tensor].reduced, refitted, projectors);
  if (it.room != PairState::kNoRoom) taken_[it.room].store(false, std::memory_order_release);
  it.room = PairState::kNoRoom;
}

void Subspaces::put(std::size_t tensor, std::byte* projectors) const {
  const auto& it = at(tensor);
  std::memcpy(projectors, &it.record, sizeof(it.record));
  if (it.refitted) put_pair(layout_.tensors()[tensor].reduced, it.next, projectors);
}

kernels::Projector Subspaces::side(std::size_t tensor, unsigned side) const {
  const auto& projectors = at(tensor).projectors;
  return side == 0 ? projectors.p.view() : projectors.q.view();
}

void Subspaces::signs(std::size_t tensor, std::span<float> signs) const {
  subspace::draw_signs(description_.seed, at(tensor).number, updates_, signs);
}

void Subspaces::end(bool applied) {
  for (auto& it : matrices_) {
    if (it) it->end(applied);
  }
}

}  // namespace spillway::subspace
