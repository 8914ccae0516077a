#include "spillway/optim/common.h"
#include "spillway/optim/optimizers.h"

namespace spillway::optim {

constinit const Descriptor adam{.name = "adam",
                                .words = "Adam, whose weight decay is added to the gradient",
                                .fields = kAdamFields,
                                .hyperparameters = kAdamHyperparameters,
                                .formats = kEveryFormat,
                                .kernel = kernels::Optimizer::adam};

}  // namespace spillway::optim
