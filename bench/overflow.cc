// The check of a gradient for infinity and NaN, in the pass that copies it and adds up its norm:
//
//   overflow [--elements N] [--rounds N]
//
// Rounds of each in turn, so that a noisy machine slows all, with 1 thread: memcpy of N elements, and copy_norm() of
// the same elements. Prints medians in milliseconds. bench/overflow.py puts PyTorch's checks beside these.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "bench/arguments.h"
#include "spillway/kernels/gradient.h"

namespace {

namespace kernels = spillway::kernels;
using Clock = std::chrono::steady_clock;

double median_milliseconds(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2] * 1e3;
}

template <class T>
void measure(const char* name, std::size_t elements, std::size_t rounds, T one) {
  const std::vector<T> in(elements, one);
  std::vector<T> out(elements);
  std::vector<double> copies, checks;
  bool finite = true;
  for (std::size_t round = 0; round <= rounds; ++round) {
    const auto begin = Clock::now();
    std::memcpy(out.data(), in.data(), elements * sizeof(T));
    const auto middle = Clock::now();
    finite = kernels::copy_norm(in.data(), out.data(), elements).finite() && finite;
    const auto end = Clock::now();
    if (round == 0) continue;
    copies.push_back(std::chrono::duration<double>(middle - begin).count());
    checks.push_back(std::chrono::duration<double>(end - middle).count());
  }
  std::printf("%s: copy %.3f ms, copy with norm and check %.3f ms, finite %d\n", name, median_milliseconds(copies),
              median_milliseconds(checks), finite ? 1 : 0);
}

}  // namespace

int main(int count, char** words) {
  spillway::bench::Arguments arguments(count, words, "overflow [--elements N] [--rounds N]");
  const auto elements = arguments.number("--elements", std::size_t{64} << 20);
  const auto rounds = arguments.number("--rounds", 9);
  (void)arguments.rest(0, 0);
  return spillway::bench::finish("overflow", [&] {
    measure<float>("fp32", elements, rounds, 1.0F);
    measure<std::uint16_t>("bf16", elements, rounds, 0x3F80);
  });
}
