// What packed weights stand for, for Python: converts. No logic.
#include "spillway/kernels/packed.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "module.h"
#include "spillway/base/bytes.h"
#include "spillway/state/dtype.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"

namespace nb = nanobind;

namespace {

using Unrounded = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

struct Array {
  spillway::kernels::Encoding encoding;
  std::uint64_t values;  // with what fills up the last group
  std::vector<std::byte> bytes;
};

Array packed(const std::string& form, const Unrounded& values) {
  const auto encoding = spillway::state::encoding_of(spillway::state::parse_packed_form(form), {});
  const auto n = values.shape(0), whole = spillway::round_up(n, spillway::kernels::group_values(encoding));
  Array out{encoding, whole, std::vector<std::byte>(spillway::kernels::encoded_bytes(encoding, whole))};
  spillway::kernels::ScaleMean mean;
  mean.add(values.data(), n);
  spillway::kernels::pack(encoding, values.data(), out.bytes.data(), whole, 0, n, mean.mean());
  return out;
}

void round_packed(const std::string& form, const Unrounded& values) {
  const auto array = packed(form, values);
  spillway::kernels::unpack(array.encoding, array.bytes.data(), array.values, 0, values.shape(0), values.data());
}

std::uint64_t granule_values(const std::string& form, const std::string& weight_dtype) {
  using spillway::state::Form;
  const auto kind = form == "as_run" ? Form::as_run : spillway::state::parse_packed_form(form);
  return spillway::state::granule_values(kind, spillway::state::parse_weight_type(weight_dtype));
}

nb::bytes pack(const std::string& form, const Unrounded& values) {
  const auto array = packed(form, values);
  return nb::bytes(array.bytes.data(), array.bytes.size());
}

}  // namespace

void bind_packed(nb::module_& module) {
  module.def("granule_values", &granule_values, nb::arg("form"), nb::arg("weight_dtype"),
             "Values that each piece of a tensor is a multiple of where pieces are placed apart.");
  module.def("round_packed", &round_packed, nb::arg("form"), nb::arg("values"),
             "fp32 values of a whole tensor, flat, become what packed weights of that form stand for, in place.");
  module.def("pack", &pack, nb::arg("form"), nb::arg("values"),
             "The bytes that keep these fp32 values of a whole tensor, flat, in that form.");
}
