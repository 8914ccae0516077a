// state::SafetensorsReader and SafetensorsWriter for Python: converts, releases the GIL. No logic.
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "module.h"
#include "spillway/base/error.h"
#include "spillway/state/digests.h"
#include "spillway/state/safetensors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::device::cpu, nb::c_contig>;

spillway::state::SafetensorsWriter* make(
    const std::string& directory, const std::string& base,
    const std::vector<std::tuple<std::string, std::string, std::vector<std::int64_t>>>& tensors,
    std::uint64_t max_shard) {
  std::vector<spillway::state::TensorOut> outs;
  for (const auto& [name, dtype, shape] : tensors) outs.push_back({name, dtype, shape});
  return new spillway::state::SafetensorsWriter(directory, base, std::move(outs), max_shard);  // nanobind takes it
}

using Head = std::tuple<std::string, std::vector<std::int64_t>>;

std::map<std::string, Head> heads(const spillway::state::SafetensorsReader& reader) {
  std::map<std::string, Head> out;
  for (const auto& [name, tensor] : reader.tensors()) out.emplace(name, Head(tensor.dtype, tensor.shape));
  return out;
}

std::set<std::string> decoded(const spillway::state::SafetensorsReader& reader) {
  std::set<std::string> out;
  for (const auto& [name, tensor] : reader.tensors()) {
    if (reader.is_decoded(tensor)) out.insert(name);
  }
  return out;
}

void read_tensor(const spillway::state::SafetensorsReader& reader, const std::string& name, const Bytes& out,
                 std::uint64_t first) {
  const auto* tensor = reader.find(name);
  const auto count = tensor == nullptr ? 0 : out.size() / tensor->element_bytes;
  if (tensor == nullptr || out.size() != count * tensor->element_bytes || first > tensor->elements ||
      count > tensor->elements - first) {
    throw spillway::Error(spillway::ErrorCode::internal,
                          spillway::text("tensor ", name, " is not there, or has not ", out.size(),
                                         " bytes from element ", first, " on"));
  }
  const nb::gil_scoped_release release;
  reader.read(*tensor, first, count, reinterpret_cast<std::byte*>(out.data()));  // NOLINT
}

using Range = std::tuple<std::string, std::uint64_t, std::uint64_t>;

std::optional<std::vector<Range>> find_damage(const std::string& file, const std::string& digests,
                                              const std::optional<std::uint64_t>& most_pieces) {
  const nb::gil_scoped_release release;
  const auto parsed = spillway::state::parse_digests(digests, file);
  if (!parsed) return std::nullopt;
  std::vector<Range> out;
  for (const auto& range : spillway::state::find_damage(file, *parsed, most_pieces.value_or(~std::uint64_t{0}))) {
    out.emplace_back(range.tensor, range.begin, range.end);
  }
  return out;
}

void bind_digests(nb::module_& module) {
  module.def(
      "digests_of",
      [](const std::string& file) {
        const nb::gil_scoped_release release;
        return to_json(spillway::state::digests_of(file));
      },
      "file"_a);
  module.def("find_damage", &find_damage, "file"_a, "digests"_a, "most_pieces"_a.none() = nb::none());
}

}  // namespace

void bind_checkpoint(nb::module_& module) {
  using spillway::state::SafetensorsReader;
  using spillway::state::SafetensorsWriter;
  bind_digests(module);
  nb::class_<SafetensorsReader>(module, "SafetensorsReader",
                                "Reads one file, or a directory's model.safetensors or the shards of its index.")
      .def(nb::new_([](const std::string& place) { return new SafetensorsReader(place); }), "place"_a,
           "ValueError that names file and tensor where anything is wrong with them.")
      .def("tensors", &heads, "Type as in the header and shape, by name.")
      .def("decoded", &decoded, "Names of weights that are codes in the files.")
      .def("read", &read_tensor, "name"_a, "out"_a, "first"_a = 0,
           "Bytes of whole elements of a tensor, from element `first` on. OSError where a file has become shorter.");
  nb::class_<SafetensorsWriter>(module, "SafetensorsWriter",
                                "Writes a checkpoint's files as save_pretrained does, tensors in any order.")
      .def(nb::new_(&make), "directory"_a, "base"_a, "tensors"_a, "max_shard"_a,
           "`tensors`: (name, type as in the header, shape) each, in the order in which they go to shards.")
      .def(
          "write",
          [](SafetensorsWriter& self, std::size_t tensor, std::uint64_t first, const Bytes& values) {
            const nb::gil_scoped_release release;
            self.write(tensor, first, {reinterpret_cast<const std::byte*>(values.data()), values.size()});  // NOLINT
          },
          "tensor"_a, "first"_a, "values"_a, "Bytes of whole elements from element `first` of a tensor on.")
      .def("finish", &SafetensorsWriter::finish, nb::call_guard<nb::gil_scoped_release>(),
           "Checks that every byte was written once, and gives the files their names.");
}
