#include "spillway/subspace/published.h"

#include <utility>

#include "spillway/base/error.h"
#include "spillway/kernels/project.h"
#include "spillway/subspace/scattered.h"
#include "spillway/subspace/transfer.h"

namespace spillway::subspace {
namespace {

Projectors pair_of(const MatrixOptions& options) {
  const auto d = rank_of(options);
  return {Projector(options.rows, d, options.nonzeros, Places::scattered),
          Projector(options.columns, d, options.nonzeros, Places::scattered)};
}

}  // namespace

Projectors learn(const Projectors& shape, const PairKey& key, std::span<const float> gradient,
                 const DescentOptions& options) {
  const auto draw = [&](const Projector& side, unsigned number) {
    return Projector::random(side, key.seed, key.number, key.refits, number);
  };
  Projectors out{draw(shape.p, 0), draw(shape.q, 1)};
  descend(out, gradient, options);
  return out;
}

PublishedMatrix::PublishedMatrix(const PublishedOptions& options) : options_(options), pair_(pair_of(options.shape)) {
  moments_.assign(2, std::vector<float>(rank() * rank()));
  delta_.resize(rank() * rank());
  work_.resize(kernels::apply_work({pair_.p.view(), pair_.q.view(), delta_.data()}));
}

void PublishedMatrix::refit(std::span<const float> gradient) {
  if (refits_ > 0) {
    missed_ = missed_share(pair_, gradient);
    if (!(missed_ > options_.threshold)) return;
  }
  auto learned = learn(pair_, {options_.seed, options_.number, refits_}, gradient, options_.descent);
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
  unpack(p, pair.p);
  unpack(q, pair.q);
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
  kernels::apply(weights, {pair_.p.view(), pair_.q.view(), delta_.data()}, keep, weight, 0, work_.data());
  if (!next_) return;
  carry_first(pair_, *next_, moments_[0]);
  carry_second(pair_, *next_, moments_[1]);
  pair_ = std::move(*next_);
  next_.reset();
  ++refits_;
}

}  // namespace spillway::subspace
