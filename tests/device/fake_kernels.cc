#include "tests/device/fake_kernels.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace spillway::device::fake {
namespace {

using kernels::Fp16;
using threads::Bf16;
using threads::Grid;
using threads::kBlock;
using threads::kWarp;

template <class Body>
void each_thread(unsigned blocks, const Body& body) {
  const auto all = std::uint64_t{blocks} * kBlock;
  for (std::uint64_t thread = 0; thread < all; ++thread) body(Grid{thread, all});
}

/// body(unit) for every unit that a warp takes, warp after warp.
template <class Body>
void each_warp(unsigned blocks, std::uint64_t units, const Body& body) {
  const auto warps = std::uint64_t{blocks} * kBlock / kWarp;
  for (std::uint64_t warp = 0; warp < warps; ++warp) {
    for (auto unit = warp; unit < units; unit += warps) body(unit);
  }
}

/// __shfl_down_sync by halves: lanes beyond the last read themselves.
template <class T, class Lane>
T joined(const Lane& lane) {
  std::array<T, kWarp> values;
  for (unsigned i = 0; i < kWarp; ++i) values[i] = lane(i);
  for (unsigned half = kWarp / 2; half > 0; half /= 2) {
    const auto before = values;
    for (unsigned i = 0; i < kWarp; ++i) values[i] += before[i + half < kWarp ? i + half : i];
  }
  return values[0];
}

Range range(const void* at, std::uint64_t count, std::size_t size) {
  return {at, at == nullptr ? 0 : count * size};
}

template <class T>
Bound bound(const Sum& a) {
  return {{range(a.values, a.n, sizeof(T)), range(a.sum, a.n, 4)},
          [a](unsigned blocks) { each_thread(blocks, [&](Grid grid) { threads::sum<T>(a, grid); }); }};
}

template <class T>
Bound bound(const Round& a) {
  return {{range(a.sums, a.n, 4), range(a.sums == nullptr ? a.values : nullptr, a.n, sizeof(T)),
           range(a.out, a.n, sizeof(T)), range(a.squares, square_tiles(a.n), 8)},
          [a](unsigned blocks) {
            each_warp(blocks, square_tiles(a.n), [&](std::uint64_t tile) {
              const auto sum = joined<double>([&](unsigned lane) { return threads::round<T>(a, tile, lane); });
              if (a.squares != nullptr) a.squares[tile] = kernels::quiet(sum);
            });
          }};
}

template <class T>
Bound bound(const Squares& a) {
  return {{range(a.parts, a.count, sizeof(Part)), range(a.squares, a.count, 8)}, [a](unsigned blocks) {
            each_warp(blocks, a.count, [&](std::uint64_t part) {
              const auto sum = joined<double>([&](unsigned lane) { return threads::squares<T>(a, part, lane); });
              a.squares[part] = kernels::quiet(sum);
            });
          }};
}

template <class T>
Bound bound(const Gather& a) {
  return {{range(a.rows, a.count, 8), range(a.out, a.count * a.columns, 4)},
          [a](unsigned blocks) { each_thread(blocks, [&](Grid grid) { threads::gather<T>(a, grid); }); }};
}

std::vector<Range> ranges_of(const Logits& a, std::size_t size, std::initializer_list<const float*> stats) {
  std::vector<Range> out{range(a.values, a.tokens * a.rows, size), range(a.labels, a.tokens, 8)};
  for (const auto* each : stats) out.push_back(range(each, a.tokens, 4));
  return out;
}

template <class T>
Bound bound(const LossStats& a) {
  return {ranges_of(a.logits, sizeof(T), {a.maximum, a.sum, a.gold}), [a](unsigned blocks) {
            each_warp(blocks, a.logits.tokens, [&](std::uint64_t token) {
              float highest = a.maximum[token];
              for (unsigned lane = 0; lane < kWarp; ++lane) {
                const auto other = threads::highest<T>(a, token, lane);
                highest = other > highest ? other : highest;
              }
              const kernels::SoftmaxFold fold(a.maximum[token], highest);
              const auto sum = joined<float>(
                  [&](unsigned lane) { return threads::lane_exponentials<T>(a, token, lane, fold.shift); });
              threads::end_stats<T>(a, token, fold, sum);
            });
          }};
}

template <class T>
Bound bound(const LossGradient& a) {
  return {ranges_of(a.logits, sizeof(T), {a.maximum, a.log_sum}), [a](unsigned blocks) {
            for (unsigned block = 0; block < blocks; ++block) {
              for (std::uint64_t token = block; token < a.logits.tokens; token += blocks) {
                for (unsigned t = 0; t < kBlock; ++t) threads::loss_gradient<T>(a, token, {t, kBlock});
              }
            }
          }};
}

template <class T>
Bound bound(const Compress& a) {
  const auto& r = a.projector;
  return {{range(r.values, r.nonzeros * r.stride(), 4), range(a.in, a.tokens * a.in_stride, sizeof(T)),
           range(a.out, r.columns * a.out_stride, sizeof(T))},
          [a](unsigned blocks) { each_thread(blocks, [&](Grid grid) { threads::compress<T>(a, grid); }); }};
}

Bound bound(const Apply& a) {
  const auto &p = a.expansion.p, &q = a.expansion.q;
  return {{range(a.weight, a.n, 2), range(a.residual, a.n, 2), range(p.values, p.nonzeros * p.stride(), 4),
           range(q.values, q.nonzeros * q.stride(), 4), range(a.expansion.delta, p.columns * q.columns, 4)},
          [a](unsigned blocks) { each_thread(blocks, [&](Grid grid) { threads::apply(a, grid); }); }};
}

Bound bound(const Sample& a) {
  return {{range(a.first, a.first_count, 8), range(a.second, a.second_count, 8), range(a.out, Sample::kFields, 8),
           range(a.copy, Sample::kFields, 8)},
          [a](unsigned) { take_sample(a); }};
}

Bound bound(const threads::AdamWArguments& a) {
  const auto& it = a.update;
  return {{range(it.weight, it.n, 2), range(it.residual, it.n, 2), range(it.exp_avg, it.n, 4),
           range(it.exp_avg_sq, it.n, 4), range(it.grad, it.n, 2)},
          [a](unsigned blocks) { each_thread(blocks, [&](Grid grid) { threads::adamw(a, grid); }); }};
}

Bound bound(const threads::AdamWDeltaArguments& a) {
  const auto& it = a.update;
  return {
      {range(it.delta, it.n, 4), range(it.exp_avg, it.n, 4), range(it.exp_avg_sq, it.n, 4), range(it.grad, it.n, 2)},
      [a](unsigned blocks) { each_thread(blocks, [&](Grid grid) { threads::adamw_delta(a, grid); }); }};
}

template <class Arguments, class Make>
Kernel kernel(std::string name, Make make) {
  return {std::move(name), [make](const void* from) {
            Arguments arguments;
            std::memcpy(static_cast<void*>(&arguments), from, sizeof arguments);
            return make(arguments);
          }};
}

/// Constants of a step have no default.
template <class Arguments>
Kernel of_a_step(std::string name) {
  return {std::move(name), [](const void* from) {
            alignas(Arguments) std::byte bytes[sizeof(Arguments)];
            std::memcpy(bytes, from, sizeof bytes);
            return bound(*reinterpret_cast<const Arguments*>(bytes));
          }};
}

template <class Arguments>
void add(std::vector<Kernel>& out, const std::string& name) {
  out.push_back(kernel<Arguments>(name + "_bf16", [](const Arguments& a) { return bound<Bf16>(a); }));
  out.push_back(kernel<Arguments>(name + "_fp16", [](const Arguments& a) { return bound<Fp16>(a); }));
  out.push_back(kernel<Arguments>(name + "_fp32", [](const Arguments& a) { return bound<float>(a); }));
}

std::vector<Kernel> all() {
  std::vector<Kernel> out;
  add<Sum>(out, "spillway_sum");
  add<Round>(out, "spillway_round");
  add<Squares>(out, "spillway_squares");
  add<Gather>(out, "spillway_gather");
  add<LossStats>(out, "spillway_loss_stats");
  add<LossGradient>(out, "spillway_loss_gradient");
  add<Compress>(out, "spillway_compress");
  out.push_back(kernel<Apply>("spillway_apply", [](const Apply& a) { return bound(a); }));
  out.push_back(kernel<Sample>("spillway_sample", [](const Sample& a) { return bound(a); }));
  out.push_back(of_a_step<threads::AdamWArguments>("spillway_adamw"));
  out.push_back(of_a_step<threads::AdamWDeltaArguments>("spillway_adamw_delta"));
  return out;
}

}  // namespace

const Kernel* find(const std::string& name) {
  static const auto kAll = all();
  const auto found = std::ranges::find(kAll, name, &Kernel::name);
  return found == kAll.end() ? nullptr : &*found;
}

}  // namespace spillway::device::fake
