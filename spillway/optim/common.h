// What descriptors of several optimizers have in common.
#pragma once

#include <array>

#include "spillway/optim/descriptor.h"

namespace spillway::optim {

inline constexpr std::array kEveryFormat{kernels::Moments::exact, kernels::Moments::bf16, kernels::Moments::int8};

inline constexpr Hyperparameter kRate{.name = "learning_rate", .slot = 0};
inline constexpr Hyperparameter kDecay{.name = "weight_decay", .key = "weight_decay", .slot = 4};

/// A number from 0 up to, but not including, 1.
constexpr Hyperparameter beta(const char* name, const char* key, double value, const char* words, int slot) {
  return {.name = name, .key = key, .value = value, .below = 1, .words = words, .slot = slot};
}

/// Those of Adam and AdamW.
inline constexpr std::array kAdamHyperparameters{kRate, kDecay,
                                                 beta("beta1", "adam_beta1", 0.9, "decay of the first moment", 1),
                                                 beta("beta2", "adam_beta2", 0.999, "decay of the second moment", 2),
                                                 Hyperparameter{.name = "epsilon",
                                                                .key = "adam_epsilon",
                                                                .value = 1e-8,
                                                                .above = true,
                                                                .words = "added to the root of the second moment",
                                                                .slot = 3}};
inline constexpr std::array kAdamFields{"exp_avg", "exp_avg_sq"};

}  // namespace spillway::optim
