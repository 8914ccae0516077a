#include "spillway/kernels/update.h"

#include "spillway/kernels/adam.h"
#include "spillway/kernels/adamw.h"
#include "spillway/kernels/lion.h"
#include "spillway/kernels/sgd.h"

namespace spillway::kernels {

void update(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step) {
  switch (step.optimizer) {
    case Optimizer::adamw:
      return adamw(form, span, step);
    case Optimizer::adam:
      return adam(form, span, step);
    case Optimizer::lion:
      return lion(form, span, step);
    case Optimizer::sgd:
      return sgd(form, span, step);
  }
}

}  // namespace spillway::kernels
