#include "spillway/machine/node_rates.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "spillway/memory/near.h"
#include "spillway/memory/placed.h"
#include "spillway/sys/nodes.h"
#include "spillway/sys/numa.h"

namespace spillway::machine {
namespace {

constexpr Bytes kMemory = 256 * MiB;  // beyond the caches of most processors
constexpr Bytes kLeastPart = kCalibrationMemory;

/// Sum of what `threads` threads, each with its part of `memory`, say of their rate.
template <class Measure>
double together(std::span<std::byte> memory, std::size_t threads, const Measure& measure) {
  std::vector<double> rates(threads, 0);
  std::vector<std::thread> team;
  const auto part = round_down(memory.size() / threads, 4096);
  for (std::size_t t = 0; t < threads; ++t) {
    team.emplace_back([&, t] { rates[t] = measure(memory.subspan(t * part, part)); });
  }
  for (auto& thread : team) thread.join();
  double sum = 0;
  for (const auto rate : rates) sum += rate;
  return sum;
}

double read_rate(std::span<const std::byte> memory, double seconds) {
  const auto words = std::span(reinterpret_cast<const std::uint64_t*>(memory.data()), memory.size() / 8);
  static std::atomic<std::uint64_t> kept;  // so that the reads are not left out
  const auto pass = [&] {
    std::uint64_t sum[4] = {};
    for (std::size_t i = 0; i + 4 <= words.size(); i += 4) {
      for (std::size_t k = 0; k < 4; ++k) sum[k] += words[i + k];
    }
    kept += sum[0] + sum[1] + sum[2] + sum[3];
  };
  return calls_per_second(pass, seconds) * static_cast<double>(memory.size());
}

NodeRate measure_node(const sys::Node& node, const std::vector<sys::Node>& machine, double seconds,
                      const UpdateKind& kind) {
  const auto bytes = std::min(kMemory, round_down(sys::takeable(node) / 4, 4096));
  NodeRate out{.id = node.id};
  if (bytes < kLeastPart) return out;
  const memory::Placed placed(bytes, {.nodes = {node.id}});
  const auto most = bytes / kLeastPart;
  const auto near = std::clamp<std::size_t>(sys::nearest_cpus(machine, node.id).size(), 1, most);
  const auto update = [&](std::span<std::byte> part) {
    memory::stay_near(node.id);
    return calibrate_update(part, seconds, kind);
  };
  out.update_elements_per_second_thread = together(placed.span(), 1, update);
  out.update_elements_per_second =
      near > 1 ? together(placed.span(), near, update) : out.update_elements_per_second_thread;
  const auto mine = std::clamp<std::size_t>(sys::thread_affinity().size(), 1, most);
  out.read_bytes_per_second =
      together(placed.span(), mine, [&](std::span<std::byte> part) { return read_rate(part, seconds); });
  return out;
}

}  // namespace

std::vector<NodeRate> measure_nodes(const std::vector<int>& nodes, double seconds, const UpdateKind& kind) {
  const auto machine = sys::nodes();
  std::vector<NodeRate> out;
  for (const auto id : nodes) out.push_back(measure_node(sys::find_node(machine, id), machine, seconds, kind));
  return out;
}

}  // namespace spillway::machine
