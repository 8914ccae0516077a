#include "spillway/optim/common.h"
#include "spillway/optim/optimizers.h"

namespace spillway::optim {
namespace {

constexpr std::array kLionFields{"exp_avg"};
constexpr std::array kLionHyperparameters{
    kRate, kDecay, beta("beta1", "adam_beta1", 0.9, "of `lion`, the weight of the momentum in the step", 1),
    beta("beta2", "adam_beta2", 0.999, "of `lion`, of the momentum", 2)};

}  // namespace

constinit const Descriptor lion{.name = "lion",
                                .words = "the sign of an interpolation of gradient and momentum",
                                .fields = kLionFields,
                                .hyperparameters = kLionHyperparameters,
                                .formats = kEveryFormat,
                                .decoupled_decay = true,
                                .kernel = kernels::Optimizer::lion};

}  // namespace spillway::optim
