// Memory on nodes, for tensors.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <utility>

#include "module.h"
#include "spillway/device/cuda.h"
#include "spillway/device/registered.h"
#include "spillway/memory/pages.h"
#include "spillway/memory/placed.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using spillway::device::Registered;
using spillway::memory::Placed;
using spillway::memory::Placement;
using MemoryArray = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::device::cpu, nb::c_contig>;

Placement placement_of(std::vector<int> nodes, std::vector<double> weights, std::uint64_t granularity, bool strict) {
  return {.nodes = std::move(nodes), .weights = std::move(weights), .granularity = granularity, .strict = strict};
}

/// Let go of in the reverse order.
struct Kept {
  Placed placed;
  std::optional<Registered> registered = {};
};

MemoryArray place(std::uint64_t bytes, std::vector<int> nodes, std::vector<double> weights, std::uint64_t granularity,
                  bool strict, bool huge_pages, std::optional<int> gpu) {
  const auto placement = placement_of(std::move(nodes), std::move(weights), granularity, strict);
  std::unique_ptr<Kept> made;
  {
    const nb::gil_scoped_release release;
    made.reset(new Kept{Placed(bytes, placement, spillway::memory::PlacedOptions{.huge_pages = huge_pages})});
    if (gpu) made->registered.emplace(spillway::device::make_cuda({.index = *gpu}), made->placed.span());
  }
  auto* kept = made.release();
  const nb::capsule owner(kept, [](void* at) noexcept { delete static_cast<Kept*>(at); });
  return MemoryArray(kept->placed.span().data(), {kept->placed.span().size()}, owner);
}

std::span<std::byte> range_of(std::uintptr_t address, std::uint64_t bytes) {
  return {reinterpret_cast<std::byte*>(address), bytes};  // NOLINT
}

}  // namespace

void bind_memory(nb::module_& module) {
  module.def("place", &place, "bytes"_a, "nodes"_a, "weights"_a, "granularity"_a, "strict"_a, "huge_pages"_a,
             "gpu"_a = nb::none(),
             "Zeroed memory on nodes, as an array that owns it; registered with a GPU, if given.");
  module.def(
      "where",
      [](std::uintptr_t address, std::uint64_t bytes) {
        const nb::gil_scoped_release release;
        std::vector<std::pair<int, std::uint64_t>> out;
        for (const auto& part : spillway::memory::where(range_of(address, bytes))) {
          out.emplace_back(part.node, part.bytes);
        }
        return out;
      },
      "address"_a, "bytes"_a, "(node, bytes) each; node -1: not in memory.");
  module.def(
      "move",
      [](std::uintptr_t address, std::uint64_t bytes, std::vector<int> nodes, std::vector<double> weights,
         std::uint64_t granularity, bool strict) {
        const nb::gil_scoped_release release;
        spillway::memory::move(range_of(address, bytes),
                               placement_of(std::move(nodes), std::move(weights), granularity, strict));
      },
      "address"_a, "bytes"_a, "nodes"_a, "weights"_a, "granularity"_a, "strict"_a);
}
