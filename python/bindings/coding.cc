// state/coding.h for Python: converts. No logic.
#include "spillway/state/coding.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Words = std::tuple<std::string, std::string>;

Words words_of(const spillway::state::Coding& coding) {
  return {std::string(name_of(coding)), std::string(form_of(coding))};
}

}  // namespace

void bind_coding(nb::module_& module) {
  module.def(
      "parse_coding",
      [](const std::string& settings, const std::string& file) {
        return words_of(spillway::state::parse_coding(settings, file));
      },
      "settings"_a, "file"_a,
      "The name of a kind of quantised weights, and the form that packs them into the same codes, or \"\". `settings`: "
      "quantization_config as JSON. ValueError that names a method that is not read.");
  module.def(
      "find_coding",
      [](const std::string& directory) -> std::optional<Words> {
        const auto coding = spillway::state::find_coding(directory);
        return coding ? std::optional(words_of(*coding)) : std::nullopt;
      },
      "directory"_a, "The same of the config.json in a directory; None where its weights are not quantised.");
  module.def(
      "decoded_names",
      [](const std::string& directory, const std::set<std::string>& names) {
        const auto coding = spillway::state::find_coding(directory);
        return coding ? spillway::state::decoded_names(*coding, names) : names;
      },
      "directory"_a, "names"_a, "The names of a checkpoint's tensors as SafetensorsReader has them.");
}
