// What learning a pair of projectors takes, for gradients of each shape and each number of values in a row, d half of
// the smaller side:
//
//   lsp_fit [--rows M,..] [--columns N,..] [--nonzeros R,..] [--rounds N]
//
// One thread's CPU time, medians; the gradient is eight strong directions in noise. `captured`: |S| / |G|, which
// the projectors are to have as large as they can.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <vector>

#include "bench/arguments.h"
#include "spillway/base/error.h"
#include "spillway/subspace/refit.h"

namespace {

namespace subspace = spillway::subspace;

constexpr const char* kUsage = "lsp_fit [--rows M,..] [--columns N,..] [--nonzeros R,..] [--rounds N]";
constexpr std::size_t kDirections = 8;

/// Of this thread's processor.
double seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double middle(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Around a normal number: four uniform ones.
float noise(std::uint64_t& state) {
  double sum = -2;
  for (int i = 0; i < 4; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    sum += static_cast<double>(state >> 11) * 0x1p-53;
  }
  return static_cast<float>(sum);
}

std::vector<float> gradient_of(std::size_t m, std::size_t n) {
  std::uint64_t state = 1;
  std::vector<float> out(m * n), u(m), v(n);
  for (auto& value : out) value = 0.2F * noise(state);
  for (std::size_t k = 0; k < kDirections; ++k) {
    for (auto& value : u) value = noise(state) / static_cast<float>(k + 1);
    for (auto& value : v) value = noise(state);
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) out[i * n + j] += u[i] * v[j];
    }
  }
  return out;
}

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

void measure(std::size_t m, std::size_t n, std::size_t r, std::size_t rounds, const std::vector<float>& gradient) {
  const auto d = std::min(m, n) / 2 / r * r;
  subspace::Projectors projectors{subspace::Projector(m, d, r), subspace::Projector(n, d, r)};
  subspace::Refit refit(m * d);
  std::vector<double> parts[subspace::Refit::kParts], whole;
  for (std::size_t round = 0; round <= rounds; ++round) {
    refit.begin(projectors, gradient);
    double sum = 0;
    for (unsigned part = 0; part < subspace::Refit::kParts; ++part) {
      const double start = seconds();
      for (std::size_t tile = 0; tile < refit.tiles(part); ++tile) refit.run(part, tile);
      const double taken = seconds() - start;
      if (round > 0) parts[part].push_back(taken);
      sum += taken;
    }
    if (round > 0) whole.push_back(sum);
  }
  const double captured = norm(subspace::project(projectors, gradient)) / norm(gradient);
  std::printf("%zu x %zu, r %zu: %.2f ms (Q %.2f, G Q %.2f, P %.2f), %.3f ns for an element and value, captured %.6f\n",
              m, n, r, middle(whole) * 1e3, middle(parts[0]) * 1e3, middle(parts[1]) * 1e3, middle(parts[2]) * 1e3,
              middle(whole) * 1e9 / static_cast<double>(m * n * r), captured);
}

}  // namespace

int main(int count, char** words) {
  spillway::bench::Arguments arguments(count, words, kUsage);
  const auto rows = arguments.numbers("--rows", {1024, 2048, 2816, 5632}),
             columns = arguments.numbers("--columns", {1024, 2048, 1024, 2048});
  const auto nonzeros = arguments.numbers("--nonzeros", {4, 8, 16, 32});
  const auto rounds = arguments.number("--rounds", 5);
  (void)arguments.rest(0, 0);
  return spillway::bench::finish("lsp_fit", [&] {
    if (rows.size() != columns.size() || rounds == 0) {
      throw spillway::Error(spillway::ErrorCode::bad_input,
                            "--rows and --columns need as many numbers each, and --rounds 1 or more");
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto gradient = gradient_of(rows[i], columns[i]);
      for (const auto r : nonzeros) measure(rows[i], columns[i], r, rounds, gradient);
    }
  });
}
