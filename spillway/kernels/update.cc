#include "spillway/kernels/update.h"

#include "spillway/kernels/adamw.h"

namespace spillway::kernels {
namespace {

template <class T>
T* as(std::byte* bytes) {
  return reinterpret_cast<T*>(bytes);
}

}  // namespace

void update(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step) {
  if (form.weights == Weights::split) {
    adamw_exact(as<std::uint16_t>(span.weight), as<std::uint16_t>(span.rest), as<float>(span.moments[0]),
                as<float>(span.moments[1]), reinterpret_cast<const std::uint16_t*>(span.grad), span.n, step);
  } else {
    adamw_fp32(as<float>(span.weight), as<float>(span.moments[0]), as<float>(span.moments[1]),
               reinterpret_cast<const float*>(span.grad), span.n, step);
  }
}

}  // namespace spillway::kernels
