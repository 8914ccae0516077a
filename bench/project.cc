// What a step in a subspace costs beside the layer's own work, for a weight [rows, columns] and d of half its side:
//
//   project [--hidden N] [--rank D] [--nonzeros R] [--tokens T] [--rounds N] [--layers L] [--scattered 1]
//
// Rounds of each in turn, so that a noisy machine slows all: compress() of an input and of an output gradient, with 1
// thread, bf16 and fp32; apply() over the matrices of L layers, bf16 weight and remainder, beside a rewrite of the same
// bytes (its own reads and writes without arithmetic). Medians. bench/project.py puts the dense products beside these.
#include "spillway/kernels/project.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <vector>

#include "bench/arguments.h"
#include "spillway/kernels/bf16.h"

namespace {

namespace kernels = spillway::kernels;
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "project [--hidden N] [--rank D] [--nonzeros R] [--tokens T] [--rounds N] [--layers L] [--scattered 1]";

double seconds(const auto& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Sizes {
  std::size_t hidden, rank, nonzeros, tokens, rounds, layers;
};

/// Values around 1 / sqrt(nonzeros).
std::vector<float> projector(const Sizes& sizes) {
  std::vector<float> values(sizes.nonzeros * (sizes.hidden + kernels::kProjectorPad));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 17) / 16 - 0.5F;
  return values;
}

/// Columns that lie far apart within a row and from row to row.
std::vector<std::uint32_t> places(const Sizes& sizes) {
  const auto stride = sizes.hidden + kernels::kProjectorPad;
  std::vector<std::uint32_t> out(sizes.nonzeros * stride);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto row = i % stride, s = i / stride;
    out[i] = static_cast<std::uint32_t>((row * 7919 + s * (sizes.rank / sizes.nonzeros)) % sizes.rank);
  }
  return out;
}

template <class T>
void measure_compress(const char* name, const Sizes& sizes, const kernels::Projector& view) {
  std::vector<T> in(sizes.tokens * sizes.hidden), out(sizes.rank * sizes.tokens);
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i] = std::is_same_v<T, float> ? static_cast<T>(i % 13) : static_cast<T>(kernels::round_bf16(i % 13));
  }
  std::vector<float> work(kernels::compress_work(view));
  std::vector<double> taken;
  for (std::size_t round = 0; round <= sizes.rounds; ++round) {
    taken.push_back(seconds([&] {
      kernels::compress(view, in.data(), sizes.hidden, sizes.tokens, out.data(), sizes.tokens, work.data());
    }));
  }
  taken.erase(taken.begin());
  const double bytes = static_cast<double>((in.size() + out.size()) * sizeof(T));
  std::printf("compress %s: %.3f ms, %.1f GB/s in and out\n", name, middle(taken) * 1e3, bytes / middle(taken) / 1e9);
}

/// The same reads and writes as apply(), row by row.
void rewrite(std::vector<std::uint16_t>& weight, std::vector<std::uint16_t>& remainder, std::size_t row) {
  static volatile std::uint64_t zero = 0;
  const std::uint64_t nothing = zero;
  for (std::size_t at = 0; at < weight.size(); at += row) {
    for (auto* array : {&weight, &remainder}) {
      auto* words = reinterpret_cast<std::uint64_t*>(array->data() + at);
      for (std::size_t i = 0; i < row / 4; ++i) words[i] |= nothing;
    }
  }
}

void measure_apply(const Sizes& sizes, const kernels::Projector& view) {
  const auto matrix = sizes.hidden * sizes.hidden;
  std::vector<std::uint16_t> weight(sizes.layers * matrix, 0x3C00), remainder(weight.size());
  std::vector<float> delta(sizes.rank * sizes.rank, 1e-6F);
  const kernels::Expansion expansion{view, view, delta.data()};
  std::vector<float> work(kernels::apply_work(expansion));
  std::vector<double> applied, rewritten, shares;
  for (std::size_t round = 0; round <= sizes.rounds; ++round) {
    const double mine = seconds([&] {
      for (std::size_t l = 0; l < sizes.layers; ++l) {
        const kernels::UpdateSpan span{.weight = reinterpret_cast<std::byte*>(weight.data() + l * matrix),
                                       .remainder = reinterpret_cast<std::byte*>(remainder.data() + l * matrix),
                                       .n = matrix};
        kernels::apply(kernels::Weights::bf16, expansion, 0.999F, span, 0, work.data());
      }
    });
    const double other = seconds([&] { rewrite(weight, remainder, sizes.hidden); });
    if (round == 0) continue;
    applied.push_back(mine), rewritten.push_back(other), shares.push_back(other / mine);
  }
  const double bytes = static_cast<double>(weight.size()) * 8;
  std::printf("apply: %.3f ms a matrix, %.1f GB/s; rewrite %.1f GB/s; share %.0f %% (%.0f to %.0f)\n",
              middle(applied) * 1e3 / static_cast<double>(sizes.layers), bytes / middle(applied) / 1e9,
              bytes / middle(rewritten) / 1e9, middle(shares) * 100, *std::ranges::min_element(shares) * 100,
              *std::ranges::max_element(shares) * 100);
}

}  // namespace

int main(int count, char** words) {
  spillway::bench::Arguments arguments(count, words, kUsage);
  Sizes sizes{.hidden = arguments.number("--hidden", 2048)};
  sizes.rank = arguments.number("--rank", sizes.hidden / 2);
  sizes.nonzeros = arguments.number("--nonzeros", 4);
  sizes.tokens = arguments.number("--tokens", 1024);
  sizes.rounds = arguments.number("--rounds", 9);
  sizes.layers = arguments.number("--layers", 16);
  const bool scattered = arguments.number("--scattered", 0) > 0;
  (void)arguments.rest(0, 0);
  return spillway::bench::finish("project", [&] {
    const auto values = projector(sizes);
    const auto columns = places(sizes);
    const kernels::Projector view{values.data(), sizes.hidden, sizes.rank, sizes.nonzeros,
                                  scattered ? columns.data() : nullptr};
    std::printf("hidden %zu, d %zu, r %zu, %zu tokens, 1 thread, medians of %zu rounds\n", sizes.hidden, sizes.rank,
                sizes.nonzeros, sizes.tokens, sizes.rounds);
    measure_compress<std::uint16_t>("bf16", sizes, view);
    measure_compress<float>("fp32", sizes, view);
    measure_apply(sizes, view);
  });
}
