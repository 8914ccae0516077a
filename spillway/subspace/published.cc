#include "spillway/subspace/published.h"

#include <algorithm>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/kernels/project.h"

namespace spillway::subspace {
namespace {

/// A B, all of [d, d].
std::vector<float> multiply(std::span<const float> a, std::span<const float> b, std::size_t d) {
  std::vector<float> out(d * d);
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t k = 0; k < d; ++k) {
      const float factor = a[i * d + k];
      for (std::size_t j = 0; j < d; ++j) out[i * d + j] += factor * b[k * d + j];
    }
  }
  return out;
}

/// R'ᵀ R, [d, d].
std::vector<float> transfer(const Scattered& before, const Scattered& after) {
  const auto d = after.columns(), r = after.nonzeros();
  std::vector<float> out(d * d);
  for (std::size_t k = 0; k < after.values().size(); ++k) {
    const auto first = k / r * r;
    for (auto old = first; old < first + r; ++old) {
      out[after.places()[k] * d + before.places()[old]] += after.values()[k] * before.values()[old];
    }
  }
  return out;
}

/// moment = A moment Bᵀ.
void carry_by(std::span<const float> a, std::span<const float> b, std::size_t d, std::span<float> moment) {
  std::ranges::copy(multiply(multiply(a, moment, d), turn(b, d, d), d), moment.begin());
}

void square(std::span<float> values) {
  for (auto& value : values) value *= value;
}

ScatteredPair shape_of(const MatrixOptions& options) {
  const auto d = rank_of(options);
  return {Scattered(options.rows, d, options.nonzeros), Scattered(options.columns, d, options.nonzeros)};
}

}  // namespace

void carry_first(const ScatteredPair& before, const ScatteredPair& after, std::span<float> moment) {
  carry_by(transfer(before.p, after.p), transfer(before.q, after.q), after.p.columns(), moment);
}

void carry_second(const ScatteredPair& before, const ScatteredPair& after, std::span<float> moment) {
  auto a = transfer(before.p, after.p), b = transfer(before.q, after.q);
  square(a);
  square(b);
  carry_by(a, b, after.p.columns(), moment);
}

PublishedMatrix::PublishedMatrix(const PublishedOptions& options) : options_(options), pair_(shape_of(options.shape)) {
  moments_.assign(2, std::vector<float>(rank() * rank()));
  delta_.resize(rank() * rank());
}

ScatteredPair PublishedMatrix::learn(std::span<const float> gradient) const {
  const auto draw = [&](const Scattered& shape, unsigned side) {
    return Scattered::random(shape, options_.seed, options_.number, refits_, side);
  };
  ScatteredPair out{draw(pair_.p, 0), draw(pair_.q, 1)};
  descend(out, gradient, options_.descent);
  return out;
}

void PublishedMatrix::refit(std::span<const float> gradient) {
  if (refits_ > 0) {
    missed_ = missed_share(pair_, gradient);
    if (!(missed_ > options_.threshold)) return;
  }
  auto learned = learn(gradient);
  missed_ = missed_share(learned, gradient);
  if (refits_ > 0) {
    next_ = std::move(learned);
  } else {
    pair_ = std::move(learned);
    ++refits_;
  }
}

void PublishedMatrix::restore(std::span<const float> p, std::span<const float> q, std::uint64_t refits, double missed) {
  auto pair = pair_;
  pair.p.unpack(p);
  pair.q.unpack(q);
  pair_ = std::move(pair);
  next_.reset();
  refits_ = refits;
  missed_ = missed;
}

void PublishedMatrix::step(kernels::Weights weights, std::span<const float> s, const kernels::UpdateStep& update,
                           const kernels::UpdateSpan& weight) {
  if (refits_ == 0) throw Error(ErrorCode::internal, "a step before the first projectors");
  check_sizes(s, rank(), weight, pair_.p.rows() * pair_.q.rows());
  const float keep = keep_of(update);
  make_change(s, update, weight.index, moments_, delta_);
  apply(weights, keep, weight);
  if (!next_) return;
  carry(*next_);
  pair_ = std::move(*next_);
  next_.reset();
  ++refits_;
}

/// W = keep W + P delta Qᵀ, row by row: each is the product of a projector of one 1 and one of its change.
void PublishedMatrix::apply(kernels::Weights weights, float keep, const kernels::UpdateSpan& weight) const {
  const auto m = pair_.p.rows(), n = pair_.q.rows(), d = rank();
  const auto changes = expand(pair_.p, turn(expand(pair_.q, turn(delta_, d, d), d), n, d), n);
  std::vector<float> one(1 + kernels::kProjectorPad, 1.0F), change(n + kernels::kProjectorPad);
  const kernels::Expansion row{{one.data(), 1, 1, 1}, {change.data(), n, 1, 1}, one.data()};
  std::vector<float> work(kernels::apply_work(row));
  for (std::size_t i = 0; i < m; ++i) {
    std::copy_n(changes.data() + i * n, n, change.data());
    auto span = weight;
    span.weight += i * n * traits(weights).bytes;
    if (span.remainder != nullptr) span.remainder += i * n * traits(weights).remainder;
    span.n = n;
    span.index += i * n;
    kernels::apply(weights, row, keep, span, 0, work.data());
  }
}

void PublishedMatrix::carry(const ScatteredPair& next) {
  carry_first(pair_, next, moments_[0]);
  carry_second(pair_, next, moments_[1]);
}

}  // namespace spillway::subspace
