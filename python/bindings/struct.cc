#include "struct.h"

namespace nb = nanobind;

bool are_alike(nb::handle self, nb::handle other, const std::vector<const char*>& names) {
  if (!self.type().is(other.type())) return false;
  for (const auto* name : names) {
    if (!nb::getattr(self, name).equal(nb::getattr(other, name))) return false;
  }
  return true;
}

std::string show(nb::handle self, const std::vector<const char*>& names) {
  auto out = nb::cast<std::string>(nb::getattr(self.type(), "__name__"));
  const char* before = "(";
  for (const auto* name : names) {
    out += std::string(before) + name + "=" + nb::repr(nb::getattr(self, name)).c_str();
    before = ", ";
  }
  return out + ")";
}
