#include "spillway/subspace/matrix.h"

#include <algorithm>
#include <cmath>

#include "spillway/base/error.h"
#include "spillway/subspace/transfer.h"

namespace spillway::subspace {
namespace {

Pair pair_of(const MatrixOptions& options) {
  const auto d = rank_of(options);
  return {Projector(options.rows, d, options.nonzeros), Projector(options.columns, d, options.nonzeros)};
}

/// One minus what decays, of optimizers whose decay does not pass through the gradient.
float kept_of(const kernels::UpdateStep& update) {
  if (update.weight_decay == 0) return 1;
  if (update.optimizer == kernels::Optimizer::adamw || update.optimizer == kernels::Optimizer::lion) {
    return static_cast<float>(1 - update.learning_rate * update.weight_decay);
  }
  throw Error(ErrorCode::bad_input,
              text("weight_decay ", update.weight_decay,
                   " in a subspace: adam and sgd add it to the gradient, which is not there; use adamw or lion, or 0"));
}

}  // namespace

std::size_t rank_of(const MatrixOptions& options) {
  const auto smaller = std::min(options.rows, options.columns);
  const auto r = std::max<std::size_t>(1, options.nonzeros);
  const auto rank = options.rank != 0 ? options.rank : smaller / 2 / r * r;
  if (rank != 0 && rank <= smaller) return rank;
  throw Error(ErrorCode::bad_input,
              text("lsp_rank ", rank, " for a weight of ", options.rows, " x ", options.columns, " with lsp_nonzeros ",
                   options.nonzeros, "; it must be at least lsp_nonzeros and at most the smaller side"));
}

Matrix::Matrix(const MatrixOptions& options) : pair_(pair_of(options)) {
  const auto d = rank();
  moments_.assign(2, std::vector<float>(d * d));
  delta_.resize(d * d);
  work_.resize(kernels::apply_work({pair_.p.view(), pair_.q.view(), delta_.data()}));
}

void Matrix::learn(std::span<const float> gradient, bool anew) {
  auto next = pair_;
  subspace::fit(next, gradient);
  if (fitted()) {
    next_ = std::move(next);
    anew_ = anew;
    return;
  }
  pair_ = std::move(next);
  ++fits_;
}

/// After so many steps.
void Matrix::adopt(std::int64_t steps) {
  if (anew_) {
    for (auto& moment : moments_) std::ranges::fill(moment, 0.0F);
    begun_ = steps;
  } else {
    carry_first(pair_, *next_, moments_[0]);
    carry_second(pair_, *next_, moments_[1]);
  }
  pair_ = std::move(*next_);
  next_.reset();
  bias_.restart();
  ++fits_;
}

void Matrix::set_pair(Pair pair, std::uint64_t fits) {
  const auto like = [](const Projector& a, const Projector& b) {
    return a.rows() == b.rows() && a.columns() == b.columns() && a.nonzeros() == b.nonzeros();
  };
  if (!like(pair.p, pair_.p) || !like(pair.q, pair_.q)) {
    throw Error(ErrorCode::bad_input, text("projectors of another shape than a weight of ", pair_.p.rows(), " x ",
                                           pair_.q.rows(), " with lsp_rank ", rank(), " has"));
  }
  pair_ = std::move(pair);
  next_.reset();
  fits_ = fits;
}

void Matrix::step(kernels::Weights weights, std::span<const float> s, const kernels::UpdateStep& update,
                  const kernels::UpdateSpan& weight) {
  const auto m = pair_.p.rows(), n = pair_.q.rows(), d = rank();
  if (!fitted()) throw Error(ErrorCode::internal, "a step before the first projectors");
  if (s.size() != d * d || weight.n != m * n) {
    throw Error(ErrorCode::bad_input, text("a step of ", s.size(), " elements onto ", weight.n, "; the subspace has ",
                                           d * d, ", the weight ", m * n));
  }
  const float kept = kept_of(update);
  auto inside = update;
  inside.weight_decay = 0;
  inside.step -= begun_;
  inside.learning_rate *= std::sqrt(static_cast<double>(m) * static_cast<double>(n)) / static_cast<double>(d);
  // The optimizer's change of a weight that is 0 is the delta.
  std::ranges::fill(delta_, 0.0F);
  const auto bytes = [](std::vector<float>& array) { return reinterpret_cast<std::byte*>(array.data()); };
  kernels::update({kernels::Weights::fp32, kernels::Moments::fp32},
                  {.weight = bytes(delta_),
                   .moments = {bytes(moments_[0]), bytes(moments_[1])},
                   .grad = reinterpret_cast<const std::byte*>(s.data()),
                   .n = d * d,
                   .index = weight.index},
                  inside);
  kernels::apply(weights, {pair_.p.view(), pair_.q.view(), delta_.data()}, kept, weight, 0, work_.data());
  if (next_) adopt(update.step);
}

}  // namespace spillway::subspace
