#include "spillway/optim/common.h"
#include "spillway/optim/optimizers.h"

namespace spillway::optim {
namespace {

constexpr std::array kSgdFields{"momentum_buffer"};
constexpr std::array kSgdHyperparameters{
    kRate, kDecay, beta("momentum", "momentum", 0, "of `sgd`: what the momentum keeps of itself from step to step", 1)};

}  // namespace

constinit const Descriptor sgd{
    .name = "sgd",
    .words = "stochastic gradient descent with momentum; weight decay is added to the gradient",
    .fields = kSgdFields,
    .hyperparameters = kSgdHyperparameters,
    .formats = kEveryFormat,
    .kernel = kernels::Optimizer::sgd};

}  // namespace spillway::optim
