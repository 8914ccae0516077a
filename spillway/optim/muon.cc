// Muon: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; learning rates as in Liu et
// al., "Muon is Scalable for LLM Training" (arXiv 2502.16982). As torch.optim.Muon does it: the gradient's running
// mean, looked ahead (Nesterov), is made orthogonal by five steps of Newton and Schulz, whose matrices are bf16.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/product.h"
#include "spillway/kernels/weights_scalar.h"
#include "spillway/optim/optimizers.h"
#include "spillway/optim/step.h"

namespace spillway::optim {
namespace {

using kernels::kProductTile;

constexpr float kA = 3.4445F, kB = -4.7750F, kC = 2.0315F;  ///< of the polynomial
constexpr float kEpsilon = 1e-7F;
constexpr std::size_t kNewtonSchulz = 5;
enum : std::size_t { kGather, kNormalise, kFirstProduct };  ///< parts; the products' follow, and at last the weight's
constexpr std::size_t kApply = kFirstProduct + 3 * kNewtonSchulz;
constexpr std::uint64_t kTileElements = 64 * 1024;
/// Operations of a product that take as long as AdamW's update of an element.
constexpr std::uint64_t kOperations = 100;

enum : std::size_t { kMomentum = kWeightDecay + 1, kAdjust };
constexpr std::array kAdjustments{"original", "match_rms_adamw"};
constexpr std::array kMuonFields{"momentum_buffer"};
constexpr std::array kMuonFormats{kernels::Moments::exact};
constexpr std::array kMuonHyperparameters{
    Hyperparameter{
        .name = "learning_rate",
        .key = "muon_learning_rate",
        .words = "of `muon`: the schedule's highest rate for matrices of layers; the others have `learning_rate`"},
    Hyperparameter{.name = "weight_decay", .key = "weight_decay"},
    Hyperparameter{.name = "momentum",
                   .key = "muon_momentum",
                   .value = 0.95,
                   .below = 1,
                   .words = "of `muon`: decay of the running mean of a matrix's gradient"},
    Hyperparameter{.name = "adjust_lr",
                   .key = "muon_adjust_lr",
                   .value = 1,
                   .below = 2,
                   .words = "of `muon`: factor of a matrix's rate, sqrt(max(1, m / n)) (`original`) or "
                            "0.2 sqrt(max(m, n)), as large as AdamW's steps (`match_rms_adamw`)",
                   .choices = kAdjustments}};

/// The matrix as products have it, sides exchanged where it has more rows than columns: [short, long].
struct Sides {
  Sides(std::uint64_t m, std::uint64_t n)
      : rows(m), columns(n), less(std::min(m, n)), more(std::max(m, n)), exchanged(m > n) {}
  [[nodiscard]] std::uint64_t rows_of_tile() const { return std::max<std::uint64_t>(1, kTileElements / columns); }
  [[nodiscard]] std::size_t row_tiles() const { return ceil_div(rows, rows_of_tile()); }
  [[nodiscard]] static std::size_t tiles(std::uint64_t side) { return ceil_div(side, std::uint64_t{kProductTile}); }

  std::uint64_t rows, columns, less, more;
  bool exchanged;
};

/// What lies in the workspace.
struct Work {
  Work(const Sides& s, std::byte* at) {
    const auto take = [&](std::uint64_t entries, Bytes item) {
      auto* const here = at == nullptr ? nullptr : at + bytes;
      bytes += round_up(entries * item, Bytes{64});
      return here;
    };
    const auto matrix = [&](std::uint64_t entries) { return reinterpret_cast<std::uint16_t*>(take(entries, 2)); };
    x[0] = matrix(s.less * s.more), x[1] = matrix(s.less * s.more), turned = matrix(s.less * s.more);
    gram = matrix(s.less * s.less), polynomial = matrix(s.less * s.less);
    squares = reinterpret_cast<double*>(take(s.row_tiles(), sizeof(double)));
  }
  std::uint16_t* x[2];    ///< [short, long]; of step i of Newton and Schulz x[i % 2], and the next in the other
  std::uint16_t* turned;  ///< the same, [long, short]
  std::uint16_t *gram, *polynomial;
  double* squares;  ///< sums, by tile of rows
  Bytes bytes = 0;
};

/// torch.lerp.
float lerp(float from, float to, float weight) {
  return weight < 0.5F ? std::fma(weight, to - from, from) : std::fma(weight - 1, to - from, to);
}

/// Elements of a tile of rows.
struct Range {
  std::uint64_t first, last;
};

Range range(const Sides& s, std::size_t tile) {
  const auto first = tile * s.rows_of_tile();
  return {first, std::min(first + s.rows_of_tile(), s.rows)};
}

/// The momentum, and what is to be made orthogonal in bf16.
void gather(const MatrixSpan& span, const Step& step, const Sides& s, const Work& work, std::size_t tile) {
  const auto momentum = static_cast<float>(step.values[kMomentum]);
  const auto fresh = static_cast<float>(1 - step.values[kMomentum]);
  auto* const straight = s.exchanged ? work.turned : work.x[0];
  auto* const across = s.exchanged ? work.x[0] : work.turned;
  double squares = 0;
  const auto [first, last] = range(s, tile);
  for (auto row = first; row < last; ++row) {
    for (std::uint64_t column = 0; column < s.columns; ++column) {
      const auto i = row * s.columns + column;
      const float grad = kernels::scalar::gradient(span.weights, span.grad, i) * step.gradient_scale;
      float& mean = span.fields[0][i];
      mean = kernels::quiet(lerp(mean, grad, fresh));
      const auto ahead = kernels::round_bf16(lerp(grad, mean, momentum));
      straight[i] = across[column * s.rows + row] = ahead;
      squares += static_cast<double>(kernels::widen(ahead)) * kernels::widen(ahead);
    }
  }
  work.squares[tile] = squares;
}

void normalise(const Sides& s, const Work& work, std::size_t tile) {
  double squares = 0;
  for (std::size_t t = 0; t < s.row_tiles(); ++t) squares += work.squares[t];
  const auto norm = kernels::widen(kernels::round_bf16(static_cast<float>(std::sqrt(squares))));
  const auto divisor = std::max(norm, kernels::widen(kernels::round_bf16(kEpsilon)));
  auto* const straight = s.exchanged ? work.turned : work.x[0];
  auto* const across = s.exchanged ? work.x[0] : work.turned;
  const auto [first, last] = range(s, tile);
  for (auto row = first; row < last; ++row) {
    for (std::uint64_t column = 0; column < s.columns; ++column) {
      auto& value = straight[row * s.columns + column];
      value = across[column * s.rows + row] = kernels::round_bf16(kernels::widen(value) / divisor);
    }
  }
}

/// The products of step i: the Gram matrix, the polynomial of it (both symmetric), the next x.
kernels::Product product_of(const Sides& s, const Work& work, std::size_t part) {
  const auto i = (part - kFirstProduct) / 3;
  auto* const x = work.x[i % 2];
  kernels::Product out{.rows = s.less, .columns = s.less};
  switch ((part - kFirstProduct) % 3) {
    case 0:
      out.a = x, out.a_stride = s.more, out.b = work.turned, out.b_stride = s.less, out.depth = s.more;
      out.out = out.turned = work.gram;
      break;
    case 1:
      out.a = out.b = out.add = work.gram, out.a_stride = out.b_stride = out.depth = s.less;
      out.alpha = kC, out.beta = kB;
      out.out = out.turned = work.polynomial;
      break;
    default:
      out.a = work.polynomial, out.a_stride = out.depth = s.less, out.b = out.add = x, out.b_stride = s.more;
      out.columns = s.more, out.beta = kA;
      out.out = work.x[(i + 1) % 2], out.turned = work.turned;
  }
  out.stride = out.columns, out.turned_stride = out.rows;
  return out;
}

bool symmetric(std::size_t part) {
  return (part - kFirstProduct) % 3 < 2;
}

void multiply(const Sides& s, const Work& work, std::size_t part, std::size_t tile) {
  std::size_t row = 0, column = 0;
  if (symmetric(part)) {  // the lower triangle by rows
    while (tile > row) tile -= ++row;
    column = tile;
  } else {
    row = tile / Sides::tiles(s.more), column = tile % Sides::tiles(s.more);
  }
  thread_local std::vector<float> own(kernels::kProductWork);
  kernels::multiply_tile(product_of(s, work, part), row * kProductTile, column * kProductTile, own.data());
}

void apply(const MatrixSpan& span, const Step& step, const Sides& s, const Work& work, std::size_t tile) {
  const auto m = static_cast<double>(s.rows), n = static_cast<double>(s.columns);
  const auto ratio = step.values[kAdjust] == 0 ? std::sqrt(std::max(1.0, m / n)) : 0.2 * std::sqrt(std::max(m, n));
  const auto keep = static_cast<float>(span.decays ? 1 - step.learning_rate() * step.weight_decay() : 1.0);
  const auto rate = static_cast<float>(-step.learning_rate() * ratio);
  const auto* const change = work.x[kNewtonSchulz % 2];
  const kernels::UpdateSpan at{.weight = span.weight, .remainder = span.remainder};
  const auto [first, last] = range(s, tile);
  for (auto row = first; row < last; ++row) {
    for (std::uint64_t column = 0; column < s.columns; ++column) {
      const auto i = row * s.columns + column;
      const float move = kernels::widen(change[s.exchanged ? column * s.rows + row : i]);
      const float kept = kernels::scalar::master(span.weights, at, i) * keep;
      kernels::scalar::put_master(span.weights, at, i, kernels::quiet(std::fma(rate, move, kept)));
    }
  }
}

std::size_t tiles(std::uint64_t rows, std::uint64_t columns, std::size_t part) {
  const Sides s(rows, columns);
  if (part < kFirstProduct || part == kApply) return s.row_tiles();
  const auto less = Sides::tiles(s.less);
  return symmetric(part) ? less * (less + 1) / 2 : less * Sides::tiles(s.more);
}

void run(const MatrixSpan& span, const Step& step, std::size_t part, std::size_t tile) {
  const Sides s(span.rows, span.columns);
  const Work work(s, span.workspace);
  if (part == kGather) return gather(span, step, s, work, tile);
  if (part == kNormalise) return normalise(s, work, tile);
  if (part == kApply) return apply(span, step, s, work, tile);
  multiply(s, work, part, tile);
}

Bytes workspace(std::uint64_t rows, std::uint64_t columns) {
  return Work(Sides(rows, columns), nullptr).bytes;
}

std::uint64_t cost(std::uint64_t rows, std::uint64_t columns) {
  const Sides s(rows, columns);
  const auto operations = kNewtonSchulz * s.less * s.less * (3 * s.more + s.less);
  return rows * columns + operations / kOperations;
}

constexpr MatrixKernel kKernel{.parts = kApply + 1, .tiles = tiles, .run = run, .workspace = workspace, .cost = cost};

}  // namespace

constinit const Descriptor muon{.name = "muon",
                                .words = "momentum made orthogonal for matrices of layers, AdamW for all others",
                                .scope = Scope::matrix,
                                .fields = kMuonFields,
                                .hyperparameters = kMuonHyperparameters,
                                .formats = kMuonFormats,
                                .decoupled_decay = true,
                                .matrix = &kKernel,
                                .others = &adamw};

}  // namespace spillway::optim
