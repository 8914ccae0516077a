#include "spillway/kernels/adamw.h"

#include "spillway/kernels/adamw_factors.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spillway/kernels/adamw.cc"
#include <hwy/foreach_target.h>

#include "spillway/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {
namespace {

/// The distance at which memory answers in time on the machines measured; 256 to 768 elements do equally well.
constexpr std::size_t kAhead = 384;

template <class D>
HWY_INLINE Vec<Bits<D>> join_bits(D, Vec<Half<D>> weight, Vec<Half<D>> residual) {
  const Bits<D> du;
  const auto high = hn::Sub(weight, hn::ShiftRight<15>(residual));
  return hn::Or(hn::ShiftLeft<16>(hn::PromoteTo(du, high)), hn::PromoteTo(du, residual));
}

template <class D>
HWY_INLINE void split_bits(D, Vec<Bits<D>> bits, std::uint16_t* weight, std::uint16_t* residual) {
  const Half<D> dh;
  const auto rounded = hn::Add(bits, hn::Set(Bits<D>(), 0x8000));
  hn::StoreU(hn::TruncateTo(dh, hn::ShiftRight<16>(rounded)), dh, weight);
  hn::StoreU(hn::TruncateTo(dh, bits), dh, residual);
}

/// root / bias2_root, correctly rounded, without the division where there is a fused multiply-add. Each line of the
/// correction adds the exact remainder times the reciprocal; the first brings the quotient within 0.51 ulp, from where
/// the second is exact (Markstein, IBM J. Res. Dev. 34-1, 1990). root = inf and bias2_root = 0 leave a NaN remainder
/// and a product that is right already.
template <class D>
HWY_INLINE Vec<D> divide_by_bias2_root(D d, Vec<D> root, const AdamWFactors& f) {
  const auto divisor = hn::Set(d, f.bias2_root);
#if HWY_NATIVE_FMA
  const auto reciprocal = hn::Set(d, f.bias2_reciprocal);
  const auto product = hn::Mul(root, reciprocal);
  auto quotient = hn::MulAdd(hn::NegMulAdd(product, divisor, root), reciprocal, product);
  quotient = hn::MulAdd(hn::NegMulAdd(quotient, divisor, root), reciprocal, quotient);
  return hn::IfThenElse(hn::IsNaN(quotient), product, quotient);
#else
  return hn::Div(root, divisor);
#endif
}

/// One vector, as in scalar::update.
template <class D>
HWY_INLINE Vec<D> update(D d, Vec<D> weight, Vec<D> grad, float* exp_avg, float* exp_avg_sq, const AdamWFactors& f) {
  grad = hn::Mul(grad, hn::Set(d, f.gradient_scale));
  weight = hn::Mul(weight, hn::Set(d, f.decay));
  const auto old = hn::LoadU(d, exp_avg);
  const auto m = fused(d, hn::Set(d, f.lerp_weight), hn::Sub(grad, old), f.lerp_from_grad ? grad : old);
  const auto v = fused(d, hn::Mul(hn::Set(d, f.square_weight), grad), grad,
                       hn::Mul(hn::Set(d, f.beta2), hn::LoadU(d, exp_avg_sq)));
  hn::StoreU(quiet(d, m), d, exp_avg);
  hn::StoreU(quiet(d, v), d, exp_avg_sq);
  const auto denominator = hn::Add(divide_by_bias2_root(d, hn::Sqrt(v), f), hn::Set(d, f.epsilon));
  return quiet(d, hn::Add(weight, hn::Div(hn::Mul(hn::Set(d, f.minus_step_size), m), denominator)));
}

// The factors go by value: nothing that is stored can change them, so they stay in registers.
void adamw_exact(std::uint16_t* weight, std::uint16_t* residual, float* exp_avg, float* exp_avg_sq,
                 const std::uint16_t* grad, std::size_t n, const AdamWFactors f) {
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    const Half<decltype(d)> dh;
    prefetch<kAhead>(weight + i);
    prefetch<kAhead>(residual + i);
    prefetch<kAhead>(exp_avg + i);
    prefetch<kAhead>(exp_avg_sq + i);
    prefetch<kAhead>(grad + i);
    const auto bits = join_bits(d, hn::LoadU(dh, weight + i), hn::LoadU(dh, residual + i));
    const auto next =
        update(d, hn::BitCast(d, bits), widen(d, hn::LoadU(dh, grad + i)), exp_avg + i, exp_avg_sq + i, f);
    split_bits(d, hn::BitCast(Bits<decltype(d)>(), next), weight + i, residual + i);
  });
}

void adamw_fp32(float* weight, float* exp_avg, float* exp_avg_sq, const float* grad, std::size_t n,
                const AdamWFactors f) {
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    prefetch<kAhead>(weight + i);
    prefetch<kAhead>(exp_avg + i);
    prefetch<kAhead>(exp_avg_sq + i);
    prefetch<kAhead>(grad + i);
    const auto next = update(d, hn::LoadU(d, weight + i), hn::LoadU(d, grad + i), exp_avg + i, exp_avg_sq + i, f);
    hn::StoreU(next, d, weight + i);
  });
}

void split(const float* master, std::uint16_t* weight, std::uint16_t* residual, std::size_t n) {
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    split_bits(d, hn::BitCast(Bits<decltype(d)>(), hn::LoadU(d, master + i)), weight + i, residual + i);
  });
}

void join(const std::uint16_t* weight, const std::uint16_t* residual, float* master, std::size_t n) {
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    const Half<decltype(d)> dh;
    const auto bits = join_bits(d, hn::LoadU(dh, weight + i), hn::LoadU(dh, residual + i));
    hn::StoreU(hn::BitCast(d, bits), d, master + i);
  });
}

}  // namespace
}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::kernels {

HWY_EXPORT(adamw_exact);
HWY_EXPORT(adamw_fp32);
HWY_EXPORT(split);
HWY_EXPORT(join);

void adamw_exact(std::uint16_t* weight, std::uint16_t* residual, float* exp_avg, float* exp_avg_sq,
                 const std::uint16_t* grad, std::size_t n, const UpdateStep& step) {
  HWY_DYNAMIC_DISPATCH(adamw_exact)(weight, residual, exp_avg, exp_avg_sq, grad, n, AdamWFactors(step));
}

void adamw_fp32(float* weight, float* exp_avg, float* exp_avg_sq, const float* grad, std::size_t n,
                const UpdateStep& step) {
  HWY_DYNAMIC_DISPATCH(adamw_fp32)(weight, exp_avg, exp_avg_sq, grad, n, AdamWFactors(step));
}

void split(const float* master, std::uint16_t* weight, std::uint16_t* residual, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(split)(master, weight, residual, n);
}

void join(const std::uint16_t* weight, const std::uint16_t* residual, float* master, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(join)(weight, residual, master, n);
}

}  // namespace spillway::kernels
#endif  // HWY_ONCE
