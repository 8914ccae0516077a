#include "spillway/subspace/refit.h"

#include <algorithm>
#include <cmath>

#include "spillway/base/bytes.h"
#include "spillway/base/error.h"
#include "spillway/kernels/gram.h"
#include "spillway/subspace/eigen.h"

namespace spillway::subspace {
namespace {

/// Elements of a line that a tile refits from, about: their Gram matrices stay in the nearest cache.
constexpr std::size_t kTileWidth = 256;
/// Lines of a tile of G Q.
constexpr std::size_t kTileLines = 16 * kernels::kTokenTile;

std::size_t tile_groups(const kernels::Projector& view) noexcept {
  return std::max<std::size_t>(1, kTileWidth / view.largest());
}

/// What a thread refits with; all of it grows to its size and stays.
struct Work {
  std::vector<double> grams;    ///< of a tile's groups
  std::vector<double> widened;  ///< kernels::add_gram()
  std::vector<double> square;   ///< one Gram matrix, whole
  std::vector<float> turned;    ///< kernels::compress()
  Eigenvectors eigenvectors;
};

Work& work_of_this_thread() {
  thread_local Work work;
  return work;
}

/// The Gram matrices of groups [begin, end) over all lines [count][view.rows], `size` doubles apart.
void add_grams(const kernels::Projector& view, std::span<const float> lines, std::size_t begin, std::size_t end,
               std::size_t size, Work& work) {
  work.grams.assign((end - begin) * size, 0);
  work.widened.resize(kernels::gram_work(view.largest()));
  const auto count = lines.size() / view.rows;
  for (std::size_t line = 0; line < count; line += kernels::kGramLines) {
    const float* const x = lines.data() + line * view.rows;
    for (auto g = begin; g < end; ++g) {
      kernels::add_gram(x + view.first(g), view.rows, std::min(kernels::kGramLines, count - line),
                        view.first(g + 1) - view.first(g), work.grams.data() + (g - begin) * size, work.widened.data());
    }
  }
}

/// square[n][n] from the lower triangle of `gram`. False when a row's square is not finite.
bool complete(const double* gram, std::size_t n, std::vector<double>& square) {
  square.resize(n * n);
  double trace = 0;
  for (std::size_t i = 0; i < n; ++i) {
    trace += gram[i * kernels::gram_side(n) + i];
    for (std::size_t k = 0; k <= i; ++k) square[i * n + k] = square[k * n + i] = gram[i * kernels::gram_side(n) + k];
  }
  return std::isfinite(trace);
}

std::size_t side_tiles(const Projector& r) noexcept {
  return ceil_div(r.view().groups(), tile_groups(r.view()));
}

/// New values of a tile's groups from `lines` [count][r.rows()], any set of vectors whose parts in each group are to be
/// kept.
void refit_tile(Projector& r, std::span<const float> lines, std::size_t tile) {
  const auto view = r.view();
  const auto begin = tile * tile_groups(view), end = std::min(begin + tile_groups(view), view.groups());
  const auto size = kernels::gram_side(view.largest()) * kernels::gram_side(view.largest());
  auto& work = work_of_this_thread();
  add_grams(view, lines, begin, end, size, work);
  for (auto g = begin; g < end; ++g) {
    const auto first = view.first(g), n = view.first(g + 1) - first;
    if (!complete(work.grams.data() + (g - begin) * size, n, work.square)) continue;
    const auto vectors = work.eigenvectors.leading(work.square, n, r.nonzeros());
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t s = 0; s < r.nonzeros(); ++s) r.set(first + i, s, static_cast<float>(vectors[s * n + i]));
    }
  }
}

void refit_side(Projector& r, std::span<const float> lines) {
  for (std::size_t tile = 0; tile < side_tiles(r); ++tile) refit_tile(r, lines, tile);
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

void check(const Projectors& projectors, std::span<const float> gradient) {
  if (gradient.size() != projectors.p.rows() * projectors.q.rows()) {
    throw Error(ErrorCode::bad_input, text("a gradient of ", gradient.size(), " elements for a weight of ",
                                           projectors.p.rows(), " x ", projectors.q.rows()));
  }
}

}  // namespace

bool finite(std::span<const float> values) noexcept {
  double sum = 0;
  for (const float value : values) sum += std::abs(static_cast<double>(value));
  return std::isfinite(sum);
}

void refit(Projectors& projectors, std::span<const float> gradient, int turns) {
  check(projectors, gradient);
  if (!finite(gradient)) throw Error(ErrorCode::bad_input, "projectors cannot be refitted from what is not finite");
  const auto m = projectors.p.rows(), n = projectors.q.rows();
  Refit first(m * projectors.p.columns());
  first.begin(projectors, gradient);
  for (unsigned part = 0; part < Refit::kParts; ++part) {
    for (std::size_t tile = 0; tile < first.tiles(part); ++tile) first.run(part, tile);
  }
  for (int turn = 1; turn < turns; ++turn) {
    refit_side(projectors.q, from_left(projectors.p, gradient, n));
    refit_side(projectors.p, from_right(projectors.q, gradient, m));
  }
}

Refit::Refit(std::size_t elements) : half_(elements) {}

void Refit::begin(Projectors& projectors, std::span<const float> gradient) noexcept {
  projectors_ = &projectors;
  gradient_ = gradient;
}

std::size_t Refit::tiles(unsigned part) const noexcept {
  if (part == 1) return ceil_div(projectors_->p.rows(), kTileLines);
  return side_tiles(part == 0 ? projectors_->q : projectors_->p);
}

void Refit::run(unsigned part, std::size_t tile) {
  const auto m = projectors_->p.rows();
  if (part == 0) return refit_tile(projectors_->q, gradient_, tile);
  if (part == 2) return refit_tile(projectors_->p, std::span(half_).first(projectors_->q.columns() * m), tile);
  const auto view = projectors_->q.view();
  const auto first = tile * kTileLines, lines = std::min(kTileLines, m - first);
  auto& work = work_of_this_thread().turned;
  work.resize(std::max(work.size(), kernels::compress_work(view)));
  kernels::compress(view, gradient_.data() + first * view.rows, view.rows, lines, half_.data() + first, m, work.data());
}

std::vector<float> project(const Projectors& projectors, std::span<const float> gradient) {
  check(projectors, gradient);
  const auto d = projectors.p.columns();
  const auto half = from_right(projectors.q, gradient, projectors.p.rows());  // [d of Q][m]
  const auto turned = from_right(projectors.p, half, d);                      // [d of P][d of Q]
  return turned;
}

}  // namespace spillway::subspace
