#include "spillway/machine/gpu_link.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "spillway/base/error.h"
#include "spillway/base/thread.h"
#include "spillway/device/cuda.h"
#include "spillway/machine/device_update.h"
#include "spillway/memory/placed.h"

namespace spillway::machine {
namespace {

using Clock = std::chrono::steady_clock;
using device::Direction;

double since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

/// Copies of one direction, again and again over its memory.
class Copier {
 public:
  Copier(device::Device& device, Direction direction)
      : device_(device), direction_(direction), stream_(device.make_copy_stream()) {
    for (auto& event : ends_) event = device.make_event();
  }

  /// Bytes per second until `seconds` have passed. Both spans have the same size.
  double rate(std::span<std::byte> host, std::span<std::byte> there, Bytes piece, double seconds) {
    issue(host, there, piece, 0);  // the first touch of both
    device_.synchronise(ends_[0]);
    const auto began = Clock::now();
    Bytes given = 0;
    std::size_t next = 0;
    while (given == 0 || since(began) < seconds) {
      device_.synchronise(ends_[next % ends_.size()]);
      given += issue(host, there, piece, next++);
    }
    for (const auto event : ends_) device_.synchronise(event);
    return static_cast<double>(given) / since(began);
  }

 private:
  Bytes issue(std::span<std::byte> host, std::span<std::byte> there, Bytes piece, std::size_t number) {
    const auto size = std::min<Bytes>(piece, host.size());
    const auto at = number % (host.size() / size) * size;
    const bool up = direction_ == Direction::to_device;
    device_.copy(stream_, direction_, (up ? there : host).data() + at, (up ? host : there).data() + at, size);
    device_.record(ends_[number % ends_.size()], stream_);
    return size;
  }

  device::Device& device_;
  const Direction direction_;
  const device::Stream stream_;
  std::array<device::Event, 3> ends_{};
};

/// Memory of one node, registered while it is measured.
class Link {
 public:
  Link(device::Device& device, std::span<std::byte> there, const memory::Placement& placement)
      : device_(device), there_(there), host_(there.size(), placement) {
    device_.register_host(host_.span());
  }
  ~Link() { device_.unregister_host(host_.span()); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] LinkProfile measure(Copier& up, Copier& down, const LinkOptions& options) {
    const auto half = there_.size() / 2;
    const auto go = [&](Copier& copier, Bytes from) {
      return copier.rate(host_.span().subspan(from, half), there_.subspan(from, half), options.piece, options.seconds);
    };
    LinkProfile out;
    out.to_gpu_bytes_per_second = go(up, 0);
    out.from_gpu_bytes_per_second = go(down, half);
    std::exception_ptr error;
    std::thread other = start_thread([&] {
      try {
        out.from_gpu_bytes_per_second_together = go(down, half);
      } catch (...) {
        error = std::current_exception();
      }
    });
    try {
      out.to_gpu_bytes_per_second_together = go(up, 0);
    } catch (...) {
      error = std::current_exception();
    }
    other.join();
    if (error) std::rethrow_exception(error);
    return out;
  }

 private:
  device::Device& device_;
  const std::span<std::byte> there_;
  const memory::Placed host_;
};

LinkProfile measured(device::Device& device, Copier& up, Copier& down, std::span<std::byte> there, unsigned node,
                     const memory::Placement& placement, const LinkOptions& options) {
  auto out = Link(device, there, placement).measure(up, down, options);
  out.node = node;
  return out;
}

/// None: the node has no room. Where memory may not be placed it lies wherever the kernel puts it.
std::optional<LinkProfile> link_of(device::Device& device, Copier& up, Copier& down, std::span<std::byte> there,
                                   unsigned node, const LinkOptions& options) {
  const memory::Placement placement{.nodes = {static_cast<int>(node)}, .weights = {}};
  try {
    return measured(device, up, down, there, node, placement, options);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::does_not_fit) return std::nullopt;
    if (error.code() != ErrorCode::unsupported) throw;
  }
  return measured(device, up, down, there, node, {}, options);
}

double both_ways(const LinkProfile& link) {
  return link.to_gpu_bytes_per_second_together + link.from_gpu_bytes_per_second_together;
}

}  // namespace

std::vector<LinkProfile> measure_links(device::Device& device, const LinkOptions& options) {
  const auto there = device.allocate(2 * round_up(options.memory, options.piece));
  Copier up(device, Direction::to_device), down(device, Direction::from_device);
  std::vector<LinkProfile> out;
  if (options.nodes.empty()) out.push_back(measured(device, up, down, there, 0, {}, options));
  for (const auto node : options.nodes) {
    if (auto link = link_of(device, up, down, there, node, options)) out.push_back(*link);
  }
  return out;
}

std::vector<GpuProfile> measure_gpus(const LinkOptions& options, const std::string& library) {
  std::vector<device::GpuFacts> found;
  try {
    found = device::gpus(device::CudaDriver(library));
  } catch (const Error&) {  // no driver, or no GPU
    return {};
  }
  std::vector<GpuProfile> out;
  for (const auto& facts : found) {
    const auto device = device::make_cuda({.index = facts.index, .library = library});
    GpuProfile gpu{.name = std::to_string(facts.index), .memory = facts.memory};
    gpu.links = measure_links(*device, options);
    gpu.update_elements_per_second = device_update_rate(*device, options.seconds);
    const auto best = std::ranges::max_element(gpu.links, {}, both_ways);
    if (best == gpu.links.end()) continue;
    gpu.to_gpu_bytes_per_second = best->to_gpu_bytes_per_second_together;
    gpu.from_gpu_bytes_per_second = best->from_gpu_bytes_per_second_together;
    out.push_back(std::move(gpu));
  }
  return out;
}

}  // namespace spillway::machine
