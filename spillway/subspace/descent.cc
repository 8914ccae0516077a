#include "spillway/subspace/descent.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "spillway/base/error.h"
#include "spillway/subspace/refit.h"
#include "spillway/subspace/scattered.h"

namespace spillway::subspace {
namespace {

using Values = std::vector<float>;

constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;
/// Difference below which the gradient is as good as matched, and the quotient of the descent has no meaning.
constexpr double kMatched = 1e-6;

double inner(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

/// In lanes, which a compiler takes together.
float dot_in_lanes(const float* a, const float* b, std::size_t n) {
  std::array<float, 16> lanes = {};
  std::size_t k = 0;
  for (; k + lanes.size() <= n; k += lanes.size()) {
    for (std::size_t l = 0; l < lanes.size(); ++l) lanes[l] += a[k + l] * b[k + l];
  }
  float sum = 0;
  for (; k < n; ++k) sum += a[k] * b[k];
  for (const float lane : lanes) sum += lane;
  return sum;
}

void subtract(Values& from, std::span<const float> what) {
  for (std::size_t i = 0; i < from.size(); ++i) from[i] -= what[i];
}

/// G over its norm, and the same turned.
class Target {
 public:
  Target(const Projectors& pair, std::span<const float> gradient) : m_(pair.p.rows()), n_(pair.q.rows()) {
    if (gradient.size() != m_ * n_) {
      throw Error(ErrorCode::bad_input,
                  text("a gradient of ", gradient.size(), " elements for a weight of ", m_, " x ", n_));
    }
    if (!finite(gradient)) throw Error(ErrorCode::bad_input, "projectors cannot be refitted from what is not finite");
    norm_ = std::sqrt(inner(gradient, gradient));
    if (norm_ == 0) return;
    plain_.assign(gradient.begin(), gradient.end());
    for (auto& value : plain_) value = static_cast<float>(value / norm_);
    turned_ = turn(plain_, m_, n_);
  }

  [[nodiscard]] bool is_zero() const noexcept { return norm_ == 0; }
  /// G Q, [m, d].
  [[nodiscard]] Values right(const Projector& q) const { return turn(reduce(q, turned_, m_), q.columns(), m_); }
  /// Gᵀ P, [n, d].
  [[nodiscard]] Values left(const Projector& p) const { return turn(reduce(p, plain_, n_), p.columns(), n_); }

 private:
  std::size_t m_, n_;
  double norm_ = 0;
  Values plain_, turned_;
};

/// Products of a pair with a gradient of norm 1.
struct Difference {
  Values x, y;    ///< G Q [m, d], Gᵀ P [n, d]
  Values s, st;   ///< S and Sᵀ
  Values rq, rp;  ///< R Q [m, d], Rᵀ P [n, d]
  Values u, ut;   ///< Pᵀ R Q and the same turned
  double norm = 0;

  Difference(const Projectors& pair, const Target& target) : x(target.right(pair.q)), y(target.left(pair.p)) {
    const auto d = pair.p.columns();
    s = reduce(pair.p, x, d);
    st = turn(s, d, d);
    const auto inside = turn(reduce(pair.q, expand(pair.q, st, d), d), d, d);  // S Qᵀ Q
    const auto outside = reduce(pair.p, expand(pair.p, s, d), d);              // Pᵀ P S
    rq = expand(pair.p, inside, d);
    subtract(rq, x);
    rp = expand(pair.q, turn(outside, d, d), d);
    subtract(rp, y);
    u = reduce(pair.p, rq, d);
    ut = turn(u, d, d);
    norm = std::sqrt(std::max(0.0, 1 - 2 * inner(s, s) + inner(outside, inside)));
  }
};

/// The slope of |R| in a value in row `row` and column `place` of one side.
struct Side {
  const Values &difference, &product, &s, &u;
  double norm;

  [[nodiscard]] float slope(std::size_t row, std::size_t place, std::size_t d) const {
    const float sum = dot_in_lanes(difference.data() + row * d, s.data() + place * d, d) +
                      dot_in_lanes(product.data() + row * d, u.data() + place * d, d);
    return static_cast<float>(sum / norm);
  }
};

/// AdamW's state of one side's values.
class Descending {
 public:
  explicit Descending(Projector& r) : r_(r), first_(r.values().size()), second_(r.values().size()) {}

  void step(const Side& side, const DescentOptions& options, double left1, double left2) {
    auto& values = r_.values();
    const double norm = std::sqrt(inner(values, values));
    const double pull = norm > 0 ? options.penalty / norm : 0;
    const auto stride = r_.view().stride();
    for (std::size_t k = 0; k < values.size(); ++k) {
      const auto row = k % stride;
      if (row >= r_.rows()) continue;
      const double slope = side.slope(row, r_.places()[k], r_.columns()) + pull * values[k];
      first_[k] = kBeta1 * first_[k] + (1 - kBeta1) * slope;
      second_[k] = kBeta2 * second_[k] + (1 - kBeta2) * slope * slope;
      const double change = first_[k] / left1 / (std::sqrt(second_[k] / left2) + kEpsilon);
      values[k] = static_cast<float>(values[k] * (1 - options.rate * options.decay) - options.rate * change);
    }
  }

 private:
  Projector& r_;
  std::vector<double> first_, second_;
};

}  // namespace

double missed_share(const Projectors& pair, std::span<const float> gradient) {
  const Target target(pair, gradient);
  return target.is_zero() ? 0 : Difference(pair, target).norm;
}

void descend(Projectors& pair, std::span<const float> gradient, const DescentOptions& options) {
  const Target target(pair, gradient);
  if (target.is_zero()) return;
  Descending p(pair.p), q(pair.q);
  double power1 = 1, power2 = 1;
  for (int step = 0; step < options.steps; ++step) {
    const Difference it(pair, target);
    if (it.norm < kMatched) return;
    power1 *= kBeta1;
    power2 *= kBeta2;
    p.step({it.rq, it.x, it.s, it.u, it.norm}, options, 1 - power1, 1 - power2);
    q.step({it.rp, it.y, it.st, it.ut, it.norm}, options, 1 - power1, 1 - power2);
  }
}

}  // namespace spillway::subspace
