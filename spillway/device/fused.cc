#include "spillway/device/fused.h"

#include <algorithm>

#include "spillway/device/fused_threads.h"
#include "spillway/device/row_tiles.h"
#include "spillway/kernels/lanes.h"

namespace spillway::device {
namespace {

using threads::Bf16;
using threads::kWarp;

constexpr std::uint64_t kGroupsAtOnce = 1024;

/// Calls body(T{}) for the type of elements.
template <class Body>
void with_type(Element type, const Body& body) {
  switch (type) {
    case Element::bf16:
      return body(Bf16{});
    case Element::fp16:
      return body(kernels::Fp16{});
    case Element::fp32:
      return body(float{});
  }
}

/// The sum of a warp's lanes.
template <class Part>
float warp_sum(const Part& part) {
  float lanes[kWarp];  // NOLINT: filled below
  for (unsigned lane = 0; lane < kWarp; ++lane) lanes[lane] = part(lane);
  return kernels::tree_sum(lanes);
}

/// Calls body(grid) for each thread of a grid in which one takes some `kGroupsAtOnce` of so many groups.
template <class Body>
void in_grid(std::uint64_t groups, const ParallelFor& parallel_for, const Body& body) {
  const auto count = (groups + kGroupsAtOnce - 1) / kGroupsAtOnce;
  parallel_for.run(count, [&](std::size_t thread) { body(threads::Grid{thread, count}); });
}

template <class T>
float square_sum(const RmsNormForward& it, std::uint64_t row) {
  return warp_sum([&](unsigned lane) { return threads::lane_square_sum<T>(it, row, lane); });
}

}  // namespace

void on_host(const RmsNormForward& it, const ParallelFor& parallel_for) {
  with_type(it.norm.type, [&]<class T>(T) {
    by_row(it.norm.rows, parallel_for, [&](std::uint64_t row) {
      const float sum = square_sum<T>(it, row);
      for (unsigned lane = 0; lane < kWarp; ++lane) threads::normalise<T>(it, row, lane, sum);
    });
  });
}

void on_host(const RmsNormScales& it, const ParallelFor& parallel_for) {
  with_type(it.norm.type, [&]<class T>(T) {
    by_row(it.norm.rows, parallel_for, [&](std::uint64_t row) {
      const auto squares = [&](unsigned lane) { return threads::lane_row_sums<T>(it, row, lane).squares; };
      const auto products = [&](unsigned lane) { return threads::lane_row_sums<T>(it, row, lane).products; };
      threads::end_scales(it, row, {warp_sum(squares), warp_sum(products)});
    });
  });
}

void on_host(const RmsNormBackward& it, const ParallelFor& parallel_for) {
  const auto groups = threads::groups_of(it.norm.columns) * norm_tiles(it.norm.rows);
  with_type(it.norm.type, [&]<class T>(T) {
    in_grid(groups, parallel_for, [&](threads::Grid grid) { threads::differentiate_norms<T>(it, grid); });
  });
}

void on_host(const RmsNormWeight& it, const ParallelFor& parallel_for) {
  with_type(it.type, [&]<class T>(T) {
    by_row(it.columns, parallel_for, [&](std::uint64_t column) {
      const auto part = [&](unsigned lane) { return threads::lane_tile_sum(it, column, lane); };
      threads::store(warp_sum(part), threads::as<T>(it.out)[column]);
    });
  });
}

void on_host(const SwiGlu& it, const ParallelFor& parallel_for) {
  with_type(it.type, [&]<class T>(T) {
    in_grid(threads::groups_of(it.n), parallel_for, [&](threads::Grid grid) { threads::swiglu<T>(it, grid); });
  });
}

void on_host(const SwiGluBackward& it, const ParallelFor& parallel_for) {
  with_type(it.type, [&]<class T>(T) {
    in_grid(threads::groups_of(it.n), parallel_for, [&](threads::Grid grid) { threads::swiglu_backward<T>(it, grid); });
  });
}

void on_host(const Rotary& it, const ParallelFor& parallel_for) {
  const auto groups = threads::groups_of(it.half) * it.heads * it.tokens * it.sequences;
  with_type(it.type, [&]<class T>(T) {
    in_grid(groups, parallel_for, [&](threads::Grid grid) { threads::rotate<T>(it, grid); });
  });
}

}  // namespace spillway::device
