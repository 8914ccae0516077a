// The fused AdamW update over one span of a chunk.
//
// One pass reads gradient, weight, residual and moments and writes weight, residual and moments. Formulas and order of
// operations are those of torch.optim.AdamW(fused=True) on the CPU (PyTorch, aten/native/cpu/FusedAdamKernel.cpp);
// Loshchilov & Hutter, "Decoupled Weight Decay Regularization", ICLR 2019. Built with contraction off, multiply-adds
// are fused exactly where PyTorch fuses them, so every instruction set gives the same bits as PyTorch (those without a
// fused multiply-add ask the C library for it, slowly). A result that is not a number is the one NaN 0x7FC00000.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spillway/kernels/update.h"

namespace spillway::kernels {

/// `exact` state: master = join(weight, residual). All arrays hold `n` elements; any alignment; no overlap. n may be 0.
void adamw_exact(std::uint16_t* weight, std::uint16_t* residual, float* exp_avg, float* exp_avg_sq,
                 const std::uint16_t* grad, std::size_t n, const UpdateStep& step);
/// fp32 weights and gradients, no residual.
void adamw_fp32(float* weight, float* exp_avg, float* exp_avg_sq, const float* grad, std::size_t n,
                const UpdateStep& step);

/// Splits a float into bf16 (round half away from zero) and its low 16 bits; join inverts it bit for bit
/// (high = bf16 - (low >> 15)). All 2^32 patterns survive.
void split(const float* master, std::uint16_t* weight, std::uint16_t* residual, std::size_t n);
void join(const std::uint16_t* weight, const std::uint16_t* residual, float* master, std::size_t n);

namespace scalar {  // the slow, obvious reference: same results, bit for bit
void adamw_exact(std::uint16_t* weight, std::uint16_t* residual, float* exp_avg, float* exp_avg_sq,
                 const std::uint16_t* grad, std::size_t n, const UpdateStep& step);
void adamw_fp32(float* weight, float* exp_avg, float* exp_avg_sq, const float* grad, std::size_t n,
                const UpdateStep& step);
void split(const float* master, std::uint16_t* weight, std::uint16_t* residual, std::size_t n);
void join(const std::uint16_t* weight, const std::uint16_t* residual, float* master, std::size_t n);
}  // namespace scalar

}  // namespace spillway::kernels
