#include "spillway/subspace/scattered.h"

#include <algorithm>

#include "spillway/base/error.h"

namespace spillway::subspace {
namespace {

void add_scaled(float factor, const float* from, float* to, std::size_t n) {
  for (std::size_t k = 0; k < n; ++k) to[k] += factor * from[k];
}

[[noreturn]] void refuse(const Projector& r, std::size_t values) {
  throw Error(ErrorCode::bad_input,
              text(values, " values for a projector of ", r.rows(), " rows with ", r.nonzeros(),
                   " of each at random places: another weight's, or another lsp_rank or lsp_nonzeros"));
}

}  // namespace

std::vector<float> pack(const Projector& scattered) {
  const auto r = scattered.nonzeros(), n = scattered.rows() * r;
  std::vector<float> out(2 * n);
  for (std::size_t k = 0; k < n; ++k) {
    out[k] = scattered.value(k / r, k % r);
    out[n + k] = static_cast<float>(scattered.place(k / r, k % r));
  }
  return out;
}

void unpack(std::span<const float> packed, Projector& scattered) {
  const auto r = scattered.nonzeros(), n = scattered.rows() * r;
  const auto fits = [&](float place) { return place >= 0 && place < static_cast<float>(scattered.columns()); };
  if (packed.size() != 2 * n || !std::ranges::all_of(packed.subspan(n), fits)) refuse(scattered, packed.size());
  for (std::size_t k = 0; k < n; ++k) {
    scattered.set(k / r, k % r, packed[k]);
    scattered.places()[k % r * scattered.view().stride() + k / r] = static_cast<std::uint32_t>(packed[n + k]);
  }
}

void check_places(const Projector& scattered) {
  const auto fits = [&](std::uint32_t place) { return place < scattered.columns(); };
  if (!std::ranges::all_of(scattered.places(), fits)) refuse(scattered, scattered.values().size());
}

std::vector<float> reduce(const Projector& r, std::span<const float> x, std::size_t width) {
  std::vector<float> out(r.columns() * width);
  for (std::size_t i = 0; i < r.rows(); ++i) {
    for (std::size_t s = 0; s < r.nonzeros(); ++s) {
      add_scaled(r.value(i, s), x.data() + i * width, out.data() + r.place(i, s) * width, width);
    }
  }
  return out;
}

std::vector<float> expand(const Projector& r, std::span<const float> x, std::size_t width) {
  std::vector<float> out(r.rows() * width);
  for (std::size_t i = 0; i < r.rows(); ++i) {
    for (std::size_t s = 0; s < r.nonzeros(); ++s) {
      add_scaled(r.value(i, s), x.data() + r.place(i, s) * width, out.data() + i * width, width);
    }
  }
  return out;
}

std::vector<float> turn(std::span<const float> x, std::size_t rows, std::size_t columns) {
  constexpr std::size_t kSide = 32;  // squares of which both forms stay in the nearest cache
  std::vector<float> out(x.size());
  for (std::size_t top = 0; top < rows; top += kSide) {
    for (std::size_t left = 0; left < columns; left += kSide) {
      for (auto i = top; i < std::min(rows, top + kSide); ++i) {
        for (auto k = left; k < std::min(columns, left + kSide); ++k) out[k * rows + i] = x[i * columns + k];
      }
    }
  }
  return out;
}

}  // namespace spillway::subspace
