#include "spillway/device/work.h"

#include <algorithm>
#include <array>
#include <vector>

#include "spillway/device/row_tiles.h"
#include "spillway/device/typed.h"
#include "spillway/kernels/moments.h"

namespace spillway::device {
namespace {

/// Calls body(first, count) for every tile of squares.
template <class Body>
void by_tile(std::uint64_t n, const ParallelFor& parallel_for, const Body& body) {
  parallel_for.run(square_tiles(n), [&](std::size_t tile) {
    const auto first = tile * kSquaresTile;
    body(tile, first, std::min(kSquaresTile, n - first));
  });
}

std::byte* row_of(const Logits& it, std::uint64_t token) {
  return it.values + token * it.stride * traits(it.type).bytes;
}

/// Index of the label in the slice; `rows` or more when it is elsewhere.
std::uint64_t label_in(const Logits& it, std::uint64_t token) {
  return static_cast<std::uint64_t>(it.labels[token]) - it.first_row;
}

void on_host(const Sum& it, const ParallelFor& parallel_for) {
  by_tile(it.n, parallel_for, [&](std::size_t, std::uint64_t at, std::uint64_t n) {
    (it.first ? widen : add)(it.type, it.values + at * traits(it.type).bytes, it.sum + at, n);
  });
}

void on_host(const Convert& it, const ParallelFor& parallel_for) {
  by_tile(it.n, parallel_for, [&](std::size_t, std::uint64_t at, std::uint64_t n) {
    convert(it.from, it.values, it.length(), it.first + at, n, it.to, it.out + at * traits(it.to).bytes);
  });
}

void on_host(const Round& it, const ParallelFor& parallel_for) {
  const auto bytes = traits(it.type).bytes;
  by_tile(it.n, parallel_for, [&](std::size_t tile, std::uint64_t at, std::uint64_t n) {
    auto* const out = it.out + at * bytes;
    const auto norm = it.sums != nullptr ? round_norm(it.type, it.sums + at, out, n)
                                         : copy_norm(it.type, it.values + at * bytes, out, n);
    if (it.squares != nullptr) it.squares[tile] = norm.sum;
  });
}

void on_host(const Squares& it, const ParallelFor& parallel_for) {
  by_row(it.count, parallel_for, [&](std::uint64_t i) {
    const auto& part = it.parts[i];
    auto* const from = const_cast<std::byte*>(it.values) + part.first * traits(it.type).bytes;
    it.squares[i] = copy_norm(it.type, from, from, part.count).sum;  // onto itself: only the norm is wanted
  });
}

void on_host(const Gather& it, const ParallelFor& parallel_for) {
  by_row(it.count, parallel_for, [&](std::uint64_t i) {
    const auto row = static_cast<std::uint64_t>(it.rows[i] - it.base);
    widen(it.type, it.values + row * it.columns * traits(it.type).bytes, it.out + i * it.columns, it.columns);
  });
}

void on_host(const IndexSelect& it, const ParallelFor& parallel_for) {
  const auto bytes = it.columns * traits(it.type).bytes;
  by_row(it.count, parallel_for,
         [&](std::uint64_t i) { std::memcpy(it.out + i * bytes, it.values + it.index[i] * bytes, bytes); });
}

void on_host(const LossStats& it, const ParallelFor& parallel_for) {
  by_row(it.logits.tokens, parallel_for, [&](std::uint64_t token) {
    const auto* const row = row_of(it.logits, token);
    softmax_stats(it.logits.type, row, it.logits.rows, it.maximum + token, it.sum + token);
    const auto label = label_in(it.logits, token);
    if (label < it.logits.rows) it.gold[token] = value_at(it.logits.type, row, label);
  });
}

void on_host(const LossGradient& it, const ParallelFor& parallel_for) {
  by_row(it.logits.tokens, parallel_for, [&](std::uint64_t token) {
    const kernels::LogSumExp norm{it.maximum[token], it.log_sum[token]};
    softmax_gradient(it.logits.type, row_of(it.logits, token), it.logits.rows, norm, it.scale,
                     label_in(it.logits, token));
  });
}

/// Elements [first, first + n) of a span; `first` begins a block of codes.
kernels::UpdateSpan part_of(const kernels::UpdateForm& form, const kernels::UpdateSpan& span, std::uint64_t first,
                            std::uint64_t n) {
  const auto from = [first](auto* array, Bytes size) { return array == nullptr ? array : array + first * size; };
  const auto& weights = traits(form.weights);
  auto out = span;
  out.weight = from(span.weight, weights.bytes);
  out.remainder = from(span.remainder, weights.remainder);
  out.grad = from(span.grad, weights.bytes);
  for (std::size_t k = 0; k < span.moments.size(); ++k) {
    out.moments[k] = from(span.moments[k], traits(form.moments).bytes);
    if (traits(form.moments).is_scaled) out.scales[k] = span.scales[k] + first / kernels::kQuantBlock;
  }
  out.n = n;
  out.index += first;
  return out;
}
static_assert(kSquaresTile % kernels::kQuantBlock == 0);

void on_host(const Update& it, const ParallelFor& parallel_for) {
  by_tile(it.span.n, parallel_for, [&](std::size_t, std::uint64_t at, std::uint64_t n) {
    kernels::update(it.form, part_of(it.form, it.span, at, n), it.step);
  });
}

void on_host(const UpdateDelta& it, const ParallelFor& parallel_for) {
  constexpr std::uint64_t kPiece = 4096;  // whose gradient is widened at a time
  static_assert(kPiece % kernels::kQuantBlock == 0);
  const kernels::UpdateForm form{kernels::Weights::fp32, it.moments};
  by_tile(it.span.n, parallel_for, [&](std::size_t, std::uint64_t at, std::uint64_t n) {
    std::array<float, kPiece> gradient;  // NOLINT: filled below
    for (const auto end = at + n; at < end; at += kPiece) {
      auto piece = part_of(form, it.span, at, std::min(kPiece, end - at));
      widen(Element::bf16, it.span.grad + at * traits(Element::bf16).bytes, gradient.data(), piece.n);
      piece.grad = reinterpret_cast<const std::byte*>(gradient.data());
      std::fill_n(reinterpret_cast<float*>(piece.weight), piece.n, 0.0F);
      kernels::update(form, piece, it.step);
    }
  });
}

void on_host(const Compress& it, const ParallelFor& parallel_for) {
  constexpr std::uint64_t kTokens = 16 * kernels::kTokenTile;
  const auto with = [&]<class T>(const T* in, T* out) {
    parallel_for.run((it.tokens + kTokens - 1) / kTokens, [&](std::size_t tile) {
      thread_local std::vector<float> work;  // grows to its size and stays
      work.resize(std::max(work.size(), kernels::compress_work(it.by)));
      const auto first = tile * kTokens, n = std::min(kTokens, it.tokens - first);
      kernels::compress(it.by, in + first * it.in_stride, it.in_stride, n, out + first, it.out_stride, work.data());
    });
  };
  switch (it.type) {
    case Element::bf16:
      return with(reinterpret_cast<const std::uint16_t*>(it.in), reinterpret_cast<std::uint16_t*>(it.out));
    case Element::fp16:
      return with(reinterpret_cast<const kernels::Fp16*>(it.in), reinterpret_cast<kernels::Fp16*>(it.out));
    case Element::fp32:
      return with(reinterpret_cast<const float*>(it.in), reinterpret_cast<float*>(it.out));
  }
}

void on_host(const Apply& it, const ParallelFor& parallel_for) {
  by_tile(it.n, parallel_for, [&](std::size_t, std::uint64_t at, std::uint64_t n) {
    thread_local std::vector<float> work;  // grows to its size and stays
    work.resize(std::max(work.size(), kernels::apply_work(it.expansion)));
    auto* const remainder = it.remainder == nullptr ? nullptr : it.remainder + at;
    kernels::apply(kernels::Weights::bf16, it.expansion, it.keep,
                   {.weight = reinterpret_cast<std::byte*>(it.weight + at),
                    .remainder = reinterpret_cast<std::byte*>(remainder),
                    .n = n,
                    .index = it.index + at},
                   it.first + at, work.data());
  });
}

void on_host(const Sample& it, const ParallelFor& /*parallel_for*/) {
  take_sample(it);
}

}  // namespace

void compute(const Work& work, const ParallelFor& parallel_for) {
  std::visit([&](const auto& it) { on_host(it, parallel_for); }, work);
}

}  // namespace spillway::device
