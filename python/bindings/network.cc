// The port of the network, served by a thread of Python's.
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "module.h"
#include "spillway/network/exchange.h"
#include "spillway/network/served.h"
#include "spillway/plan/virtual_ranks.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using spillway::network::Message;
using spillway::network::Served;
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
using View = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

/// (id, [(peer, sends, bytes)]), or none.
nb::object next(Served& port) {
  std::optional<spillway::network::Transfer> found;
  {
    const nb::gil_scoped_release release;
    found = port.next();
  }
  if (!found) return nb::none();
  nb::list messages;
  for (const auto& it : found->messages) {
    auto* const at = reinterpret_cast<std::uint8_t*>(it.bytes.data());
    // an array without an owner would be copied, and what is received would go to the copy
    messages.append(nb::make_tuple(it.peer, it.sends, View(at, {it.bytes.size()}, nb::find(port))));
  }
  return nb::make_tuple(found->id, messages);
}

/// Begins a transfer and waits for its end.
void exchange(Served& port, const std::vector<std::tuple<std::size_t, bool, Bytes>>& given) {
  std::vector<Message> messages;
  for (const auto& [peer, sends, bytes] : given) {
    messages.push_back(
        {.peer = peer, .sends = sends, .bytes = {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}});
  }
  const nb::gil_scoped_release release;
  spillway::network::exchange(port, std::move(messages));
}

/// Positions in the step's order of the micro-batches that a rank has: the first, and one past the last.
std::pair<std::uint64_t, std::uint64_t> share_of_step(std::uint64_t virtual_ranks, std::uint64_t micro_batches,
                                                      std::uint64_t rank, std::uint64_t world) {
  const auto own = spillway::plan::VirtualRanks(virtual_ranks, micro_batches).restrict_to(rank, world);
  return {own.position_of(own.first()), own.position_of(own.end())};
}

}  // namespace

void bind_network(nb::module_& module) {
  nb::class_<Served>(module, "Network", "Messages of this process to and from others, which a thread serves.")
      .def(nb::init<std::size_t, std::size_t>(), "rank"_a, "size"_a)
      .def("next_transfer", &next, "Waits for a transfer: (id, [(peer, sends, bytes)]); None when the port is closed.")
      .def("end_transfer", &Served::end, "id"_a, "error"_a, nb::call_guard<nb::gil_scoped_release>(),
           "It has ended: well where `error` is empty.")
      .def("exchange", &exchange, "messages"_a, "Begins a transfer of (peer, sends, bytes) and waits until it ended.")
      .def("close", &Served::close, nb::call_guard<nb::gil_scoped_release>());
  module.def("share_of_step", &share_of_step, "virtual_ranks"_a, "micro_batches"_a, "rank"_a, "world"_a);
}
