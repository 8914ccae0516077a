// The gradient's way from autograd to its chunk: accumulate in fp32, round once, norm and finite check in the same
// pass.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway::kernels {

/// Sum of squares (in double) of what was written. The order of additions is fixed by the element index alone, so
/// every instruction set gives the same bits. `sum` is inf or NaN exactly when an element is not finite: the square of
/// a float cannot overflow a double.
struct Norm {
  double sum = 0;
  [[nodiscard]] bool finite() const noexcept { return sum - sum == 0; }
};

/// A span's sum is that of its tiles of so many elements, one after the other from the first. A caller that cuts a span
/// for several threads keeps one sum per tile and adds them in order: the same bits as in one call. (Sums of several
/// tiles at a time would round differently.)
inline constexpr std::size_t kNormTile = 65536;

/// out = in, with the norm. No overlap, or out == in. n may be 0; any alignment.
Norm copy_norm(const std::uint16_t* in, std::uint16_t* out, std::size_t n);  // bf16
Norm copy_norm(const float* in, float* out, std::size_t n);
/// out = bf16(in), round to nearest even (NaN becomes 0x7FC0), norm of the rounded values.
Norm round_norm(const float* in, std::uint16_t* out, std::size_t n);
/// sum = in (first micro-batch) and sum += in (later ones; a NaN becomes 0x7FC00000). No overlap.
void widen(const std::uint16_t* in, float* sum, std::size_t n);
void add(const std::uint16_t* in, float* sum, std::size_t n);
void add(const float* in, float* sum, std::size_t n);

/// copy_norm() for fp16 (NaN becomes 0x7E00 where it is rounded; what is 65520 or more becomes infinite, and so is the
/// norm).
Norm copy_norm_fp16(const std::uint16_t* in, std::uint16_t* out, std::size_t n);
Norm round_norm_fp16(const float* in, std::uint16_t* out, std::size_t n);
void widen_fp16(const std::uint16_t* in, float* sum, std::size_t n);
void add_fp16(const std::uint16_t* in, float* sum, std::size_t n);

namespace scalar {
Norm copy_norm(const std::uint16_t* in, std::uint16_t* out, std::size_t n);
Norm copy_norm(const float* in, float* out, std::size_t n);
Norm round_norm(const float* in, std::uint16_t* out, std::size_t n);
void widen(const std::uint16_t* in, float* sum, std::size_t n);
void add(const std::uint16_t* in, float* sum, std::size_t n);
void add(const float* in, float* sum, std::size_t n);
Norm copy_norm_fp16(const std::uint16_t* in, std::uint16_t* out, std::size_t n);
Norm round_norm_fp16(const float* in, std::uint16_t* out, std::size_t n);
void widen_fp16(const std::uint16_t* in, float* sum, std::size_t n);
void add_fp16(const std::uint16_t* in, float* sum, std::size_t n);
}  // namespace scalar

}  // namespace spillway::kernels
