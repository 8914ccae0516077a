#include "spillway/optim/common.h"
#include "spillway/optim/optimizers.h"

namespace spillway::optim {

constinit const Descriptor adamw{.name = "adamw",
                                 .words = "Adam with decoupled weight decay",
                                 .fields = kAdamFields,
                                 .hyperparameters = kAdamHyperparameters,
                                 .formats = kEveryFormat,
                                 .decoupled_decay = true,
                                 .on_device = true,
                                 .kernel = kernels::Optimizer::adamw};

}  // namespace spillway::optim
