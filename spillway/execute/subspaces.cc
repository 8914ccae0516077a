#include "spillway/execute/subspaces.h"

#include <cmath>
#include <cstring>

#include "spillway/base/error.h"
#include "spillway/subspace/bias.h"

namespace spillway::execute {
namespace {

subspace::Pair unlearned(const state::Subspace& it) {
  return {subspace::Projector(it.rows, it.rank, it.nonzeros), subspace::Projector(it.columns, it.rank, it.nonzeros)};
}

subspace::Bias bias_of(const state::FitRecord& record) {
  return {.captured = record.captured, .whole = record.whole, .samples = static_cast<std::uint64_t>(record.samples)};
}

double squares(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

bool finite(std::span<const float> values) {
  return std::isfinite(squares(values));
}

}  // namespace

Subspaces::Subspaces(const plan::Description& description, const state::Layout& layout)
    : description_(description), layout_(layout), matrices_(layout.tensors().size()) {
  for (std::size_t t = 0; t < matrices_.size(); ++t) {
    const auto& it = layout.tensors()[t].subspace;
    if (it.rank == 0) continue;
    matrices_[t].emplace(
        Matrix{.pair = unlearned(it), .kept = {}, .record = {}, .before = {}, .seen = {}, .version = 1});
    matrices_[t]->seen.reserve(it.rows);
    any_ = true;
  }
}

const Subspaces::Matrix& Subspaces::at(std::size_t tensor) const {
  if (tensor < matrices_.size() && matrices_[tensor]) return *matrices_[tensor];
  throw Error(ErrorCode::bad_input, text("tensor number ", tensor, " does not learn in a subspace"));
}

Subspaces::Matrix& Subspaces::at(std::size_t tensor) {
  return const_cast<Matrix&>(std::as_const(*this).at(tensor));
}

void Subspaces::restore(std::size_t tensor, const std::byte* pair) {
  auto& it = at(tensor);
  const auto fields = state::pair_fields(layout_.tensors()[tensor].subspace);
  std::memcpy(&it.kept, pair, sizeof(it.kept));
  std::memcpy(it.pair.p.values().data(), pair + fields.p, fields.p_values * sizeof(float));
  std::memcpy(it.pair.q.values().data(), pair + fields.q, fields.q_values * sizeof(float));
  it.record = it.kept;
  it.before.reset();
  ++it.version;
}

void Subspaces::begin(std::int64_t updates, double scale) {
  updates_ = updates;
  scale_ = scale;
  for (auto& it : matrices_) {
    if (it) it->seen.clear();
  }
}

bool Subspaces::learns(std::size_t tensor) const {
  const auto& it = at(tensor);
  if (!it.seen.empty()) return false;  // a part of S is made already
  if (it.record.fits == 0) return true;
  if (updates_ <= 0 || it.record != it.kept) return false;
  const auto& checks = description_.subspaces;
  const auto updates = static_cast<std::uint64_t>(updates_);
  if (subspace::rotates(checks.rotate, updates, tensor)) return true;
  return updates % checks.every == 0 && bias_of(it.kept).error() > checks.threshold;
}

void Subspaces::learn(std::size_t tensor, std::span<const float> gradient) {
  auto& it = at(tensor);
  const auto& shape = layout_.tensors()[tensor].subspace;
  if (gradient.size() != shape.rows * shape.columns) {
    throw Error(ErrorCode::bad_input,
                text("a gradient of ", gradient.size(), " elements for ", layout_.tensors()[tensor].spec.name,
                     ", which is ", shape.rows, " x ", shape.columns));
  }
  if (!finite(gradient)) return;
  auto next = it.pair;
  subspace::fit(next, gradient);
  it.before = std::exchange(it.pair, std::move(next));
  const bool anew = it.kept.fits > 0 && description_.subspaces.rotate > 0;
  it.record = {.fits = it.kept.fits + 1, .begun = anew ? static_cast<double>(updates_) : it.kept.begun};
  ++it.version;
}

kernels::Projector Subspaces::side(std::size_t tensor, unsigned side) const {
  const auto& pair = at(tensor).pair;
  return side == 0 ? pair.p.view() : pair.q.view();
}

void Subspaces::signs(std::size_t tensor, std::span<float> signs) const {
  static_cast<void>(at(tensor));
  subspace::draw_signs(description_.seed, tensor, updates_, signs);
}

void Subspaces::sample(std::size_t tensor, std::span<const float> seen) {
  auto& sum = at(tensor).seen;
  if (sum.empty()) {
    sum.assign(seen.begin(), seen.end());
    return;
  }
  for (std::size_t i = 0; i < sum.size() && i < seen.size(); ++i) sum[i] += seen[i];
}

void Subspaces::close(std::size_t tensor, double s_square, std::byte* pair) {
  auto& it = at(tensor);
  if (!it.seen.empty()) {
    auto bias = bias_of(it.record);
    const auto square = scale_ * scale_;
    bias.add(s_square / square, squares(it.seen) / square);
    it.record.captured = bias.captured;
    it.record.whole = bias.whole;
    it.record.samples = static_cast<double>(bias.samples);
  }
  const auto fields = state::pair_fields(layout_.tensors()[tensor].subspace);
  std::memcpy(pair, &it.record, sizeof(it.record));
  std::memcpy(pair + fields.p, it.pair.p.values().data(), fields.p_values * sizeof(float));
  std::memcpy(pair + fields.q, it.pair.q.values().data(), fields.q_values * sizeof(float));
}

void Subspaces::end(bool applied) {
  for (auto& it : matrices_) {
    if (!it) continue;
    if (!applied && it->before) {
      it->pair = std::move(*it->before);
      ++it->version;
    }
    it->before.reset();
    (applied ? it->kept : it->record) = applied ? it->record : it->kept;
  }
}

double Subspaces::error(std::size_t tensor) const {
  return bias_of(at(tensor).kept).error();
}

}  // namespace spillway::execute
