// What packed weights stand for, for Python: converts. No logic.
#include "spillway/kernels/packed.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "module.h"
#include "spillway/base/bytes.h"
#include "spillway/state/rule.h"

namespace nb = nanobind;

namespace {

using Unrounded = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void round_packed(const std::string& form, const Unrounded& values) {
  const auto encoding = spillway::state::encoding_of(spillway::state::parse_packed_form(form), {});
  const auto n = values.shape(0), whole = spillway::round_up(n, spillway::kernels::kPackedBlock);
  std::vector<std::byte> packed(spillway::kernels::encoded_bytes(encoding, whole));
  spillway::kernels::pack(encoding, values.data(), packed.data(), whole, 0, n);
  spillway::kernels::unpack(encoding, packed.data(), whole, 0, n, values.data());
}

}  // namespace

void bind_packed(nb::module_& module) {
  module.def("round_packed", &round_packed, nb::arg("form"), nb::arg("values"),
             "fp32 values of a whole tensor, flat, become what packed weights of that form stand for, in place.");
}
