#include "spillway/subspace/fit.h"

#include <cmath>

#include "spillway/base/error.h"
#include "spillway/subspace/eigen.h"

namespace spillway::subspace {
namespace {

/// New values from `lines` [count][r.rows()], any set of vectors whose parts in each group are to be kept.
void fit_side(Projector& r, std::span<const float> lines) {
  const auto view = r.view();
  const auto width = r.rows(), most = view.largest();
  std::vector<double> grams(view.groups() * most * most);
  for (std::size_t line = 0; line < lines.size() / width; ++line) {
    const float* const x = lines.data() + line * width;
    for (std::size_t g = 0; g < view.groups(); ++g) {
      const auto first = view.first(g), n = view.first(g + 1) - first;
      double* const gram = grams.data() + g * most * most;
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t k = 0; k < n; ++k) gram[i * n + k] += static_cast<double>(x[first + i]) * x[first + k];
      }
    }
  }
  for (std::size_t g = 0; g < view.groups(); ++g) {
    const auto first = view.first(g), n = view.first(g + 1) - first;
    const auto gram = std::span(grams).subspan(g * most * most, n * n);
    const auto vectors = leading_eigenvectors(gram, n, r.nonzeros());
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t s = 0; s < r.nonzeros(); ++s) r.set(first + i, s, static_cast<float>(vectors[s * n + i]));
    }
  }
}

/// out[c][j] = sum over i of R[i, c] * in[i][j]: R^T times a matrix of `width` columns.
std::vector<float> from_left(const Projector& r, std::span<const float> in, std::size_t width) {
  const auto view = r.view();
  std::vector<float> out(r.columns() * width);
  for (std::size_t i = 0; i < r.rows(); ++i) {
    const float* const row = in.data() + i * width;
    for (std::size_t s = 0; s < r.nonzeros(); ++s) {
      float* const to = out.data() + (view.group_of(i) * r.nonzeros() + s) * width;
      const float value = r.value(i, s);
      for (std::size_t j = 0; j < width; ++j) to[j] += value * row[j];
    }
  }
  return out;
}

/// (in R)^T, [columns][lines]: `in` is [lines][r.rows()].
std::vector<float> from_right(const Projector& r, std::span<const float> in, std::size_t lines) {
  std::vector<float> out(r.columns() * lines), work(kernels::compress_work(r.view()));
  kernels::compress(r.view(), in.data(), r.rows(), lines, out.data(), lines, work.data());
  return out;
}

void check(const Pair& pair, std::span<const float> gradient) {
  if (gradient.size() != pair.p.rows() * pair.q.rows()) {
    throw Error(ErrorCode::bad_input, text("a gradient of ", gradient.size(), " elements for a weight of ",
                                           pair.p.rows(), " x ", pair.q.rows()));
  }
}

}  // namespace

void fit(Pair& pair, std::span<const float> gradient, int turns) {
  check(pair, gradient);
  double sum = 0;
  for (const float value : gradient) sum += std::abs(static_cast<double>(value));
  if (!std::isfinite(sum)) throw Error(ErrorCode::bad_input, "projectors cannot be learned from what is not finite");
  const auto m = pair.p.rows(), n = pair.q.rows();
  fit_side(pair.q, gradient);
  fit_side(pair.p, from_right(pair.q, gradient, m));
  for (int turn = 1; turn < turns; ++turn) {
    fit_side(pair.q, from_left(pair.p, gradient, n));
    fit_side(pair.p, from_right(pair.q, gradient, m));
  }
}

std::vector<float> project(const Pair& pair, std::span<const float> gradient) {
  check(pair, gradient);
  const auto d = pair.p.columns();
  const auto half = from_right(pair.q, gradient, pair.p.rows());  // [d of Q][m]
  const auto turned = from_right(pair.p, half, d);                // [d of P][d of Q]
  return turned;
}

}  // namespace spillway::subspace
