// How near is the update to the speed of memory? Rounds of update() alternate with two ceilings over the same arrays,
// so that a noisy machine slows all: a streaming copy (memcpy, the first half of each array onto its second), and a
// rewrite (the update's own reads and writes without arithmetic).
//
//   kernels_update [--form NAME] [--optimizer NAME] [--params N] [--rounds R] [--threads T] [--json FILE]
//
// NAME of a form: exact, bf16, int8 (bf16 weights and remainders, moments in 32, 16 and 8 bits), fp32, fp16, or any
// WEIGHTS-MOMENTS such as fp16-int8. Prints, for 1 to T threads, parameters per second, GB/s of each, and the update's
// share of both ceilings: medians, and the spread of the shares. FILE gets a line of JSON for each.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/base/error.h"
#include "spillway/kernels/update.h"

namespace {

using spillway::Error;
using spillway::ErrorCode;
using Clock = std::chrono::steady_clock;

namespace kernels = spillway::kernels;

const std::map<std::string, kernels::Weights> kWeights = {
    {"split", kernels::Weights::bf16}, {"fp32", kernels::Weights::fp32}, {"fp16", kernels::Weights::fp16}};
const std::map<std::string, kernels::Moments> kMoments = {
    {"fp32", kernels::Moments::exact}, {"bf16", kernels::Moments::bf16}, {"int8", kernels::Moments::int8}};
const std::map<std::string, kernels::Optimizer> kOptimizers = {{"adamw", kernels::Optimizer::adamw},
                                                               {"adam", kernels::Optimizer::adam},
                                                               {"lion", kernels::Optimizer::lion},
                                                               {"sgd", kernels::Optimizer::sgd}};
const std::map<std::string, std::string> kForms = {{"exact", "split-fp32"},
                                                   {"bf16", "split-bf16"},
                                                   {"int8", "split-int8"},
                                                   {"fp32", "fp32-fp32"},
                                                   {"fp16", "fp16-fp32"}};

struct Options {
  std::string form = "exact";
  std::string optimizer = "adamw";
  std::string json;
  std::size_t params = std::size_t{256} << 20;
  int rounds = 9;
  int threads = 2;
};

template <class Map>
typename Map::mapped_type named(const Map& all, const std::string& name) {
  const auto found = all.find(name);
  if (found != all.end()) return found->second;
  std::string known;
  for (const auto& [each, value] : all) known += " " + each;
  throw Error(ErrorCode::bad_input, spillway::text("there is no '", name, "', only", known));
}

kernels::UpdateForm form_named(const std::string& name) {
  const std::string full = kForms.count(name) ? kForms.at(name) : name;
  const std::size_t dash = std::min(full.find('-'), full.size());
  return {named(kWeights, full.substr(0, dash)), named(kMoments, full.substr(std::min(dash + 1, full.size())))};
}

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
    if (name == "--form") {
      options.form = words[i + 1];
    } else if (name == "--optimizer") {
      options.optimizer = words[i + 1];
    } else if (name == "--json") {
      options.json = words[i + 1];
    } else if (name == "--params") {
      options.params = positive(words[i], words[i + 1]);
    } else if (name == "--rounds") {
      options.rounds = static_cast<int>(positive(words[i], words[i + 1]));
    } else if (name == "--threads") {
      options.threads = static_cast<int>(positive(words[i], words[i + 1]));
    } else {
      throw Error(ErrorCode::bad_input, name + " is not --form, --optimizer, --params, --rounds, --threads or --json");
    }
  }
  return options;
}

/// Bytes on huge pages where the machine grants them. Every array begins some pages later than the one before:
/// first-level caches of AMD tell lines apart by a hash of 16 bits of the address, and five streams at equal distances
/// of 256 MiB would push each other out (measured: a fifth of the speed). Fields of a chunk lie much closer together.
class Array {
 public:
  Array() = default;
  explicit Array(std::size_t bytes) : bytes_(bytes) {
    static std::size_t arrays = 0;
    const std::size_t lead = ++arrays * 67 * 4096;
    if (bytes == 0) return;
    bytes_ += lead;
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw Error(ErrorCode::io, "mmap refused " + spillway::human(bytes_), errno);
    madvise(p, bytes_, MADV_HUGEPAGE);
    base_ = static_cast<std::byte*>(p);
    data_ = base_ + lead;
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() {
    if (base_ != nullptr) munmap(base_, bytes_);
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  std::size_t bytes_ = 0;
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
};

/// Bytes an element takes in each array.
struct Widths {
  std::size_t weight, remainder, grad;
  std::array<std::size_t, 2> moments = {};

  Widths(const kernels::UpdateForm& form, kernels::Optimizer optimizer)
      : weight(form.weights == kernels::Weights::fp32 ? 4 : 2),
        remainder(form.weights == kernels::Weights::fp16   ? 4
                  : form.weights == kernels::Weights::bf16 ? 2
                                                           : 0),
        grad(weight) {
    for (std::size_t k = 0; k < kernels::moment_count(optimizer); ++k) {
      moments[k] = form.moments == kernels::Moments::exact ? 4 : form.moments == kernels::Moments::bf16 ? 2 : 1;
    }
  }
  [[nodiscard]] std::size_t written() const { return weight + remainder + moments[0] + moments[1]; }
  [[nodiscard]] std::size_t all() const { return written() + grad; }
};

/// The fields of one large chunk. Scales are not counted: they are less than 1 % of the bytes.
struct State {
  kernels::UpdateForm form;
  kernels::Optimizer optimizer;
  Widths widths;
  std::size_t n;
  Array weight, remainder, grad;
  std::array<Array, 2> moments, scales;

  State(const Options& options)
      : form(form_named(options.form)),
        optimizer(named(kOptimizers, options.optimizer)),
        widths(form, optimizer),
        n(options.params),
        weight(n * widths.weight),
        remainder(n * widths.remainder),
        grad(n * widths.grad),
        moments{Array(n * widths.moments[0]), Array(n * widths.moments[1])},
        scales{Array(scale_bytes(0)), Array(scale_bytes(1))} {
    fill_gradients();
    update(0, n, 1);
  }

  void update(std::size_t begin, std::size_t end, std::int64_t step) {
    const auto at = [&](const Array& a, std::size_t width) { return a.data() + begin * width; };
    kernels::UpdateSpan span{.weight = at(weight, widths.weight),
                             .remainder = at(remainder, widths.remainder),
                             .moments = {at(moments[0], widths.moments[0]), at(moments[1], widths.moments[1])},
                             .grad = at(grad, widths.grad),
                             .n = end - begin,
                             .index = begin};
    for (std::size_t k = 0; k < 2; ++k) {
      span.scales[k] = reinterpret_cast<float*>(scales[k].data()) + begin / kernels::kQuantBlock;
    }
    kernels::update(form, span,
                    {.optimizer = optimizer,
                     .learning_rate = 1e-5,
                     .weight_decay = 0.01,
                     .gradient_scale = 0.9f,
                     .step = step,
                     .seed = 1});
  }

  /// The first half of [begin, end) onto its second half, in every array.
  void copy(std::size_t begin, std::size_t end) {
    const std::size_t half = (end - begin) / 2;
    each([=](std::byte* p, std::size_t width) {
      std::memcpy(p + (begin + half) * width, p + begin * width, half * width);
    });
  }

  /// Reads and writes what update() does, array by array within a few pages; returns something of the gradient.
  std::uint64_t rewrite(std::size_t begin, std::size_t end) {
    static volatile std::uint64_t zero = 0;  // so that the stores remain
    const std::uint64_t nothing = zero;
    std::uint64_t seen = 0;
    for (std::size_t first = begin; first < end; first += 2048) {
      const std::size_t last = std::min(end, first + 2048);
      each([&](std::byte* p, std::size_t width) {
        auto* words = reinterpret_cast<std::uint64_t*>(p);
        const std::size_t from = first * width / 8, to = last * width / 8;
        if (p == grad.data()) {
          for (std::size_t i = from; i < to; ++i) seen |= words[i];
        } else {
          for (std::size_t i = from; i < to; ++i) words[i] |= nothing;
        }
      });
    }
    return seen;
  }

 private:
  [[nodiscard]] std::size_t scale_bytes(std::size_t k) const {
    return widths.moments[k] == 1 ? (n + kernels::kQuantBlock - 1) / kernels::kQuantBlock * sizeof(float) : 0;
  }

  template <class Work>
  void each(const Work& work) {
    work(weight.data(), widths.weight);
    if (widths.remainder != 0) work(remainder.data(), widths.remainder);
    work(grad.data(), widths.grad);
    for (std::size_t k = 0; k < kernels::moment_count(optimizer); ++k) work(moments[k].data(), widths.moments[k]);
  }

  /// Numbers around 1e-3 of either sign; state starts from zeros, as a run does.
  void fill_gradients() {
    for (std::size_t i = 0; i < n; ++i) {
      const auto h = static_cast<std::uint32_t>(i * 2654435761u);
      const std::uint32_t bits = 0x3A000000 | (h & 0x80FFFFFF);
      const auto narrow =
          static_cast<std::uint16_t>(form.weights == kernels::Weights::fp16 ? 0x1000 | (h >> 16 & 0x83FF) : bits >> 16);
      if (widths.grad == 4) {
        std::memcpy(grad.data() + 4 * i, &bits, 4);
      } else {
        std::memcpy(grad.data() + 2 * i, &narrow, 2);
      }
    }
  }
};

/// Seconds until every thread has done work(begin, end) on its part of [0, n).
template <class Work>
double seconds(std::size_t n, int threads, const Work& work) {
  Clock::time_point start;
  std::barrier together(threads, [&]() noexcept {
    if (start == Clock::time_point{}) start = Clock::now();
  });
  const std::size_t part = n / static_cast<std::size_t>(threads) / kernels::kQuantBlock * kernels::kQuantBlock;
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

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

/// Rates of one kind of round, a second.
using Rates = std::vector<double>;

struct Share {
  double median, low, high;  ///< percent

  Share(const Rates& update, const Rates& other) {
    Rates shares;
    for (std::size_t i = 0; i < update.size(); ++i) shares.push_back(update[i] / other[i] * 100);
    median = middle(shares);
    low = *std::min_element(shares.begin(), shares.end());
    high = *std::max_element(shares.begin(), shares.end());
  }
};

void print_share(const char* ceiling, const Share& share, const Rates& other) {
  std::printf("    %-7s %6.1f GB/s, share %5.1f %% (%.1f to %.1f)\n", ceiling, middle(other) / 1e9, share.median,
              share.low, share.high);
}

void append_json(const Options& options, int threads, const Share& copy, double params, double update, double copies) {
  if (options.json.empty()) return;
  std::FILE* file = std::fopen(options.json.c_str(), "a");
  if (file == nullptr) throw Error(ErrorCode::io, "cannot write " + options.json, errno);
  std::fprintf(file,
               "{\"form\": \"%s\", \"optimizer\": \"%s\", \"params\": %zu, \"threads\": %d, \"rounds\": %d, "
               "\"g_params_per_s\": %.3f, \"gb_per_s\": %.1f, \"copy_gb_per_s\": %.1f, "
               "\"share_of_copy_percent\": {\"median\": %.1f, \"low\": %.1f, \"high\": %.1f}}\n",
               options.form.c_str(), options.optimizer.c_str(), options.params, threads, options.rounds, params / 1e9,
               update / 1e9, copies / 1e9, copy.median, copy.low, copy.high);
  std::fclose(file);
}

void measure(State& state, int threads, const Options& options) {
  Rates updates, copies, rewrites;  // bytes a second
  std::atomic<std::uint64_t> seen = 0;
  const auto update_bytes = static_cast<double>(state.widths.all() + state.widths.written());
  const auto copy_bytes = static_cast<double>(state.widths.all());  // half is read, and written onto the other half
  for (int round = -1; round < options.rounds; ++round) {           // the first one warms up
    const auto rate = [&](double bytes, const auto& work) {
      return static_cast<double>(state.n) * bytes / seconds(state.n, threads, work);
    };
    const double update = rate(update_bytes, [&](std::size_t b, std::size_t e) { state.update(b, e, round + 3); });
    const double copy = rate(copy_bytes, [&](std::size_t b, std::size_t e) { state.copy(b, e); });
    const double rewrite = rate(update_bytes, [&](std::size_t b, std::size_t e) { seen |= state.rewrite(b, e); });
    if (round < 0) continue;
    updates.push_back(update);
    copies.push_back(copy);
    rewrites.push_back(rewrite);
  }
  const double params = middle(updates) / update_bytes;
  std::printf("%d thread%s: update %.3f G params/s = %.1f GB/s\n", threads, threads == 1 ? "" : "s", params / 1e9,
              middle(updates) / 1e9);
  const Share copy_share(updates, copies);
  print_share("copy", copy_share, copies);
  print_share("rewrite", Share(updates, rewrites), rewrites);
  append_json(options, threads, copy_share, params, middle(updates), middle(copies));
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** words) {
  try {
    const Options options = parse(count, words);
    State state(options);
    std::printf("%s, %s, %zu parameters in %s, warm, medians of %d rounds of each in turn\n", options.optimizer.c_str(),
                options.form.c_str(), state.n, spillway::human(state.n * state.widths.all()).c_str(), options.rounds);
    for (int threads = 1; threads <= options.threads; ++threads) measure(state, threads, options);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "kernels_update: %s\n", error.what());
    return 2;
  }
}
