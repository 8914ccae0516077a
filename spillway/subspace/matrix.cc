#include "spillway/subspace/matrix.h"

#include <algorithm>
#include <cmath>

#include "spillway/base/error.h"
#include "spillway/optim/optimizers.h"
#include "spillway/subspace/transfer.h"

namespace spillway::subspace {
namespace {

Projectors projectors_of(const MatrixOptions& options) {
  const auto d = rank_of(options);
  return {Projector(options.rows, d, options.nonzeros), Projector(options.columns, d, options.nonzeros)};
}

bool is_decoupled(kernels::Optimizer kernel) {
  return std::ranges::any_of(optim::all(), [=](const optim::Descriptor* it) {
    return it->matrix == nullptr && it->kernel == kernel && it->decoupled_decay;
  });
}

}  // namespace

float keep_of(const kernels::UpdateStep& update) {
  if (update.weight_decay == 0) return 1;
  if (is_decoupled(update.optimizer)) return static_cast<float>(1 - update.learning_rate * update.weight_decay);
  throw Error(
      ErrorCode::bad_input,
      text("weight_decay ", update.weight_decay,
           " in a subspace: the optimizer adds it to the gradient, which is not there; use adamw or lion, or 0"));
}

void check_sizes(std::span<const float> s, std::size_t rank, const kernels::UpdateSpan& weight, std::size_t elements) {
  if (s.size() == rank * rank && weight.n == elements) return;
  throw Error(ErrorCode::bad_input, text("a step of ", s.size(), " elements onto ", weight.n, "; the subspace has ",
                                         rank * rank, ", the weight ", elements));
}

void make_change(std::span<const float> s, const kernels::UpdateStep& update, std::uint64_t index,
                 std::vector<std::vector<float>>& moments, std::vector<float>& delta) {
  auto inside = update;
  inside.weight_decay = 0;
  std::ranges::fill(delta, 0.0F);
  const auto bytes = [](std::vector<float>& array) { return reinterpret_cast<std::byte*>(array.data()); };
  kernels::update({kernels::Weights::fp32, kernels::Moments::exact},
                  {.weight = bytes(delta),
                   .moments = {bytes(moments[0]), bytes(moments[1])},
                   .grad = reinterpret_cast<const std::byte*>(s.data()),
                   .n = s.size(),
                   .index = index},
                  inside);
}

std::size_t rank_of(const MatrixOptions& options) {
  const auto smaller = std::min(options.rows, options.columns);
  const auto r = std::max<std::size_t>(1, options.nonzeros);
  const auto rank = options.rank != 0 ? options.rank : smaller / 2 / r * r;
  if (rank != 0 && rank <= smaller) return rank;
  throw Error(ErrorCode::bad_input,
              text("lsp_rank ", rank, " for a weight of ", options.rows, " x ", options.columns, " with lsp_nonzeros ",
                   options.nonzeros, "; it must be at least lsp_nonzeros and at most the smaller side"));
}

Matrix::Matrix(const MatrixOptions& options) : projectors_(projectors_of(options)) {
  const auto d = rank();
  moments_.assign(2, std::vector<float>(d * d));
  delta_.resize(d * d);
  work_.resize(kernels::apply_work({projectors_.p.view(), projectors_.q.view(), delta_.data()}));
}

void Matrix::refit(std::span<const float> gradient, bool anew) {
  auto next = projectors_;
  subspace::refit(next, gradient);
  if (has_projectors()) {
    next_ = std::move(next);
    anew_ = anew;
    return;
  }
  projectors_ = std::move(next);
  ++refits_;
}

/// After so many steps.
void Matrix::adopt(std::int64_t steps) {
  if (anew_) {
    for (auto& moment : moments_) std::ranges::fill(moment, 0.0F);
    begun_ = steps;
  } else {
    carry_first(projectors_, *next_, moments_[0]);
    carry_second(projectors_, *next_, moments_[1]);
  }
  projectors_ = std::move(*next_);
  next_.reset();
  bias_.restart();
  ++refits_;
}

void Matrix::set_projectors(Projectors projectors, std::uint64_t refits) {
  const auto like = [](const Projector& a, const Projector& b) {
    return a.rows() == b.rows() && a.columns() == b.columns() && a.nonzeros() == b.nonzeros();
  };
  if (!like(projectors.p, projectors_.p) || !like(projectors.q, projectors_.q)) {
    throw Error(ErrorCode::bad_input, text("projectors of another shape than a weight of ", projectors_.p.rows(), " x ",
                                           projectors_.q.rows(), " with lsp_rank ", rank(), " has"));
  }
  projectors_ = std::move(projectors);
  next_.reset();
  refits_ = refits;
}

void Matrix::step(kernels::Weights weights, std::span<const float> s, const kernels::UpdateStep& update,
                  const kernels::UpdateSpan& weight) {
  const auto m = projectors_.p.rows(), n = projectors_.q.rows(), d = rank();
  if (!has_projectors()) throw Error(ErrorCode::internal, "a step before the first projectors");
  check_sizes(s, d, weight, m * n);
  const float keep = keep_of(update);
  auto inside = update;
  inside.step -= begun_;
  inside.learning_rate *= std::sqrt(static_cast<double>(m) * static_cast<double>(n)) / static_cast<double>(d);
  make_change(s, inside, weight.index, moments_, delta_);
  kernels::apply(weights, {projectors_.p.view(), projectors_.q.view(), delta_.data()}, keep, weight, 0, work_.data());
  if (next_) adopt(update.step);
}

}  // namespace spillway::subspace
