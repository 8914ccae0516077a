#include "spillway/machine/node_work.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <thread>

#include "spillway/base/bytes.h"
#include "spillway/base/thread.h"
#include "spillway/machine/calibrate.h"
#include "spillway/sys/numa.h"
#include "spillway/sys/thread.h"

namespace spillway::machine {
namespace {

constexpr unsigned kTimes = 3;  ///< whatever disturbs a measurement makes it slower, and none of these

}  // namespace

double together(std::span<std::byte> memory, unsigned threads, const std::vector<unsigned>& near,
                const std::function<double(std::span<std::byte>)>& work) {
  const Bytes part = round_down(memory.size() / threads, sys::kPage);
  std::vector<double> rates(threads, 0);
  std::barrier start(static_cast<std::ptrdiff_t>(threads));
  {
    std::vector<std::jthread> threads_at_once;
    for (unsigned t = 0; t < threads; ++t) {
      const auto measure = [&, t] {
        sys::enter_service_thread("spillway-probe");
        sys::set_thread_affinity(near);
        start.arrive_and_wait();
        rates[t] = work(memory.subspan(t * part, part));
      };
      try {
        threads_at_once.push_back(start_thread<std::jthread>(measure));
      } catch (...) {  // those before wait for all
        for (auto missing = t; missing < threads; ++missing) start.arrive_and_drop();
        throw;
      }
    }
  }
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

double read_rate(std::span<const std::byte> memory, double seconds) {
  static std::atomic<std::uint64_t> kept;  // so that nothing is left out
  const std::span words(reinterpret_cast<const std::uint64_t*>(memory.data()), memory.size() / sizeof(std::uint64_t));
  const auto pass = [&] {
    std::uint64_t sums[8] = {};
    for (std::size_t i = 0; i + 8 <= words.size(); i += 8) {
      for (std::size_t k = 0; k < 8; ++k) sums[k] += words[i + k];
    }
    for (const auto sum : sums) kept += sum;
  };
  return calls_per_second(pass, seconds) * static_cast<double>(memory.size());
}

double write_rate(std::span<std::byte> memory, double seconds) {
  int value = 0;
  const auto pass = [&] { std::memset(memory.data(), ++value, memory.size()); };
  return calls_per_second(pass, seconds) * static_cast<double>(memory.size());
}

UpdateRates update_rates(std::span<std::byte> memory, const std::vector<unsigned>& near, std::size_t threads,
                         double seconds, const UpdateKind& kind) {
  const auto run = [&](std::size_t at_once) {
    return together(memory, static_cast<unsigned>(at_once), near,
                    [&](std::span<std::byte> part) { return calibrate_update(part, seconds / kTimes, kind); });
  };
  const auto most = std::clamp<std::size_t>(threads, 1, std::max<std::size_t>(memory.size() / kCalibrationMemory, 1));
  UpdateRates best;
  for (unsigned time = 0; time < kTimes; ++time) {
    best.thread = std::max(best.thread, run(1));
    best.all = std::max(best.all, most > 1 ? run(most) : best.thread);
  }
  return best;
}

}  // namespace spillway::machine
