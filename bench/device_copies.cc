// Copies to a device and from it as the engine makes them, in pieces through its lanes, beside one plain copy of the
// same bytes: each direction alone, and both at once. Prints one line of JSON, bytes per second.
//
// device_copies [--device cuda:0] [--mebibytes 1024] [--piece 8] [--rounds 5]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/arguments.h"
#include "spillway/base/error.h"
#include "spillway/execute/copies.h"
#include "spillway/execute/device_options.h"
#include "spillway/sys/mapping.h"

namespace {

using namespace spillway;
using device::Direction;
using Clock = std::chrono::steady_clock;

struct Sides {
  std::span<std::byte> host, there;
};

/// Bytes per second of the best of several rounds of `work`, which moves `bytes`.
template <class Work>
double rate(int rounds, Bytes bytes, const Work& work) {
  double best = 0;
  work();  // the first touch
  for (int i = 0; i < rounds; ++i) {
    const auto began = Clock::now();
    work();
    best = std::max(best, static_cast<double>(bytes) / std::chrono::duration<double>(Clock::now() - began).count());
  }
  return best;
}

/// One copy of all, in a stream of its own.
class Plain {
 public:
  Plain(device::Device& device, Direction direction, Sides sides)
      : device_(device),
        direction_(direction),
        sides_(sides),
        stream_(device.make_stream()),
        end_(device.make_event()) {}

  void start() {
    const bool up = direction_ == Direction::to_device;
    device_.copy(stream_, direction_, (up ? sides_.there : sides_.host).data(),
                 (up ? sides_.host : sides_.there).data(), sides_.host.size());
    device_.record(end_, stream_);
  }
  void wait() { device_.synchronise(end_); }

 private:
  device::Device& device_;
  const Direction direction_;
  const Sides sides_;
  const device::Stream stream_;
  const device::Event end_;
};

/// The same bytes in pieces, as tasks of a step.
class Pieces {
 public:
  Pieces(device::Device& device, Direction direction, Sides sides, Bytes piece)
      : lane_(device, direction), direction_(direction), sides_(sides), piece_(piece) {}

  void start() {
    left_ = ceil_div(sides_.host.size(), piece_);
    const bool up = direction_ == Direction::to_device;
    for (Bytes at = 0; at < sides_.host.size(); at += piece_) {
      auto* const here = sides_.host.data() + at;
      auto* const there = sides_.there.data() + at;
      lane_.start({.to = up ? there : here,
                   .from = up ? here : there,
                   .bytes = std::min(piece_, sides_.host.size() - at),
                   .deadline = at,
                   .done =
                       [](void* self, std::uint64_t, const std::exception_ptr&) noexcept {
                         auto& left = static_cast<Pieces*>(self)->left_;
                         if (--left == 0) left.notify_all();
                       },
                   .context = this});
    }
  }
  void wait() {
    for (auto left = left_.load(); left != 0; left = left_.load()) left_.wait(left);
  }

 private:
  execute::CopyLane lane_;
  const Direction direction_;
  const Sides sides_;
  const Bytes piece_;
  std::atomic<std::uint64_t> left_{0};
};

template <class Copy>
nlohmann::json measure(Copy& up, Copy& down, int rounds, Bytes bytes) {
  return {{"to_device", rate(rounds, bytes, [&] { up.start(), up.wait(); })},
          {"from_device", rate(rounds, bytes, [&] { down.start(), down.wait(); })},
          {"both", rate(rounds, 2 * bytes, [&] { up.start(), down.start(), up.wait(), down.wait(); })}};
}

void run(const std::string& name, Bytes bytes, Bytes piece, int rounds) {
  const auto open = execute::open_device({.name = name});
  auto& device = *open.device;
  const sys::Mapping host(2 * bytes);
  std::fill(host.span().begin(), host.span().end(), std::byte{1});
  device.register_host(host.span());
  const auto there = device.allocate(2 * bytes);
  const Sides first{host.span().first(bytes), there.first(bytes)};
  const Sides second{host.span().subspan(bytes, bytes), there.subspan(bytes, bytes)};
  nlohmann::json out{{"device", device.name()}, {"bytes", bytes}, {"piece", piece}, {"notice", device.notice()}};
  {
    Plain up(device, Direction::to_device, first), down(device, Direction::from_device, second);
    out["plain"] = measure(up, down, rounds, bytes);
  }
  {
    Pieces up(device, Direction::to_device, first, piece), down(device, Direction::from_device, second, piece);
    out["pieces"] = measure(up, down, rounds, bytes);
  }
  for (const auto* way : {"to_device", "from_device", "both"}) {
    out["share"][way] = out["pieces"][way].get<double>() / out["plain"][way].get<double>();
  }
  device.synchronise();
  std::puts(out.dump().c_str());
}

}  // namespace

int main(int count, char** words) {
  bench::Arguments arguments(count, words,
                             "device_copies [--device cuda:0] [--mebibytes 1024] [--piece 8] [--rounds 5]");
  const auto name = arguments.text("--device", "cuda:0");
  const auto bytes = arguments.number("--mebibytes", 1024) * MiB, piece = arguments.number("--piece", 8) * MiB;
  const auto rounds = static_cast<int>(arguments.number("--rounds", 5));
  static_cast<void>(arguments.rest(0, 0));
  return bench::finish("device_copies", [&] { run(name, bytes, piece, rounds); });
}
