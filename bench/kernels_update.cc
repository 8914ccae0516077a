// How near is the fused AdamW update to the speed of memory? Rounds of adamw_exact (26 bytes per parameter: 14 read, 12
// written) alternate with two ceilings over the same arrays, so that a noisy machine slows all: a streaming copy
// (memcpy, the first half of each array onto its second), and a rewrite (the update's own reads and writes without
// arithmetic).
//
//   kernels_update [--params N] [--rounds R] [--threads T]
//
// Prints, for 1 to T threads, parameters per second, GB/s of each, and the update's share of both ceilings: medians,
// and the spread of the shares.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/base/error.h"
#include "spillway/kernels/adamw.h"

namespace {

using spillway::Error;
using spillway::ErrorCode;
using Clock = std::chrono::steady_clock;

constexpr double kUpdateBytes = 26;  ///< per parameter: 14 read and 12 written
constexpr double kCopyBytes = 14;    ///< per parameter: half of the 14 is read, and written onto the other half

struct Options {
  std::size_t params = std::size_t{256} << 20;
  int rounds = 9;
  int threads = 2;
};

std::size_t positive(const char* name, const char* text) {
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  if (*end != '\0' || value <= 0) {
    throw Error(ErrorCode::bad_input, spillway::text(name, " wants a whole number above 0, not '", text, "'"));
  }
  return static_cast<std::size_t>(value);
}

Options parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; i += 2) {
    const std::string name = words[i];
    if (i + 1 == count) throw Error(ErrorCode::bad_input, name + " wants a value");
    const std::size_t value = positive(words[i], words[i + 1]);
    if (name == "--params") {
      options.params = value;
    } else if (name == "--rounds") {
      options.rounds = static_cast<int>(value);
    } else if (name == "--threads") {
      options.threads = static_cast<int>(value);
    } else {
      throw Error(ErrorCode::bad_input, name + " is not --params, --rounds or --threads");
    }
  }
  return options;
}

/// An array of n elements on huge pages where the machine grants them.
template <class T>
class Array {
 public:
  explicit Array(std::size_t n) : bytes_(n * sizeof(T)) {
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw Error(ErrorCode::io, "mmap refused " + spillway::human(bytes_), errno);
    madvise(p, bytes_, MADV_HUGEPAGE);
    data_ = static_cast<T*>(p);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { munmap(data_, bytes_); }

  [[nodiscard]] T* data() const noexcept { return data_; }

 private:
  std::size_t bytes_;
  T* data_ = nullptr;
};

/// The fields of one large chunk.
struct State {
  std::size_t n;
  Array<std::uint16_t> weight, residual, grad;
  Array<float> exp_avg, exp_avg_sq;

  explicit State(std::size_t params) : n(params), weight(n), residual(n), grad(n), exp_avg(n), exp_avg_sq(n) {
    for (std::size_t i = 0; i < n; ++i) {
      const auto h = static_cast<std::uint32_t>(i * 2654435761u);
      weight.data()[i] = static_cast<std::uint16_t>(0x3C00 | (h & 0x80FF));
      residual.data()[i] = static_cast<std::uint16_t>(h >> 16);
      grad.data()[i] = static_cast<std::uint16_t>(0x3A00 | (h >> 8 & 0x80FF));
      exp_avg.data()[i] = 1e-4f;
      exp_avg_sq.data()[i] = 1e-6f;
    }
  }

  void update(std::size_t begin, std::size_t end, std::int64_t step) {
    spillway::kernels::adamw_exact(weight.data() + begin, residual.data() + begin, exp_avg.data() + begin,
                                   exp_avg_sq.data() + begin, grad.data() + begin, end - begin,
                                   {.learning_rate = 1e-5, .weight_decay = 0.01, .gradient_scale = 0.9f, .step = step});
  }

  /// The first half of [begin, end) onto its second half, in every array.
  void copy(std::size_t begin, std::size_t end) {
    const std::size_t half = (end - begin) / 2;
    const auto one = [=](auto* p) { std::memcpy(p + begin + half, p + begin, half * sizeof(*p)); };
    one(weight.data());
    one(residual.data());
    one(grad.data());
    one(exp_avg.data());
    one(exp_avg_sq.data());
  }

  /// Reads and writes what update() does, array by array within a few pages; returns something of the gradient.
  std::uint32_t rewrite(std::size_t begin, std::size_t end) {
    static volatile std::uint16_t zero = 0;  // so that the stores remain
    const std::uint16_t nothing = zero;
    std::uint32_t seen = 0;
    for (std::size_t first = begin; first < end; first += 2048) {
      const std::size_t last = std::min(end, first + 2048);
      for (std::size_t i = first; i < last; ++i) seen |= grad.data()[i];
      for (std::size_t i = first; i < last; ++i) weight.data()[i] |= nothing;
      for (std::size_t i = first; i < last; ++i) residual.data()[i] |= nothing;
      for (std::size_t i = first; i < last; ++i) exp_avg.data()[i] += nothing;
      for (std::size_t i = first; i < last; ++i) exp_avg_sq.data()[i] += nothing;
    }
    return seen;
  }
};

/// Seconds until every thread has done work(begin, end) on its part of [0, n).
template <class Work>
double seconds(std::size_t n, int threads, const Work& work) {
  Clock::time_point start;
  std::barrier together(threads, [&]() noexcept {
    if (start == Clock::time_point{}) start = Clock::now();
  });
  const std::size_t part = n / static_cast<std::size_t>(threads);
  const auto run = [&](std::size_t t) {
    together.arrive_and_wait();
    work(t * part, t + 1 == static_cast<std::size_t>(threads) ? n : (t + 1) * part);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(run, static_cast<std::size_t>(t));
  run(0);
  for (std::thread& other : others) other.join();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

/// Rates of one kind of round, a second.
using Rates = std::vector<double>;

void print_share(const char* ceiling, const Rates& update, const Rates& other) {
  Rates shares;
  for (std::size_t i = 0; i < update.size(); ++i) shares.push_back(update[i] / other[i] * 100);
  const auto [low, high] = std::minmax_element(shares.begin(), shares.end());
  std::printf("    %-7s %6.1f GB/s, share %5.1f %% (%.1f to %.1f)\n", ceiling, median(other) / 1e9, median(shares),
              *low, *high);
}

void measure(State& state, int threads, int rounds) {
  Rates updates, copies, rewrites;  // bytes a second
  std::atomic<std::uint32_t> seen = 0;
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    const auto rate = [&](double bytes, const auto& work) {
      return static_cast<double>(state.n) * bytes / seconds(state.n, threads, work);
    };
    const double update = rate(kUpdateBytes, [&](std::size_t b, std::size_t e) { state.update(b, e, round + 2); });
    const double copy = rate(kCopyBytes, [&](std::size_t b, std::size_t e) { state.copy(b, e); });
    const double rewrite = rate(kUpdateBytes, [&](std::size_t b, std::size_t e) { seen |= state.rewrite(b, e); });
    if (round < 0) continue;
    updates.push_back(update);
    copies.push_back(copy);
    rewrites.push_back(rewrite);
  }
  std::printf("%d thread%s: update %.3f G params/s = %.1f GB/s\n", threads, threads == 1 ? "" : "s",
              median(updates) / kUpdateBytes / 1e9, median(updates) / 1e9);
  print_share("copy", updates, copies);
  print_share("rewrite", updates, rewrites);
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** words) {
  try {
    const Options options = parse(count, words);
    State state(options.params);
    std::printf("adamw_exact, %zu parameters in %s, warm, medians of %d rounds of each in turn\n", state.n,
                spillway::human(state.n * 14).c_str(), options.rounds);
    for (int threads = 1; threads <= options.threads; ++threads) measure(state, threads, options.rounds);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "kernels_update: %s\n", error.what());
    return 2;
  }
}
