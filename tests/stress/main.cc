// The stress driver: runs that are trained, killed, cut off their power and their drives, gone back with, read and
// verified in random order, against a model of what must be true. See docs/testing.md.
//
//   stress [--seed N] [--round N] [--rounds N] [--minutes M | --seconds S] [--jobs N] [--verbose]
//
// Without a seed: a few fixed ones, and in nightly runs one that is drawn, until the time is over. SPILLWAY_NIGHTLY=1:
// an hour.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/nightly.h"
#include "tests/stress/process.h"
#include "tests/stress/round.h"

namespace spillway::stress {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<std::uint64_t, 2> kFixedSeeds = {1, 2};
constexpr std::uint64_t kFixedRounds = 1;

struct Asked {
  bool draws = testing::nightly();  // a seed, after the fixed ones
  std::optional<std::uint64_t> seed, round;
  std::uint64_t rounds = ~std::uint64_t{0};
  double seconds = testing::few_or(20.0, 3600.0);
  unsigned jobs = 2;
};

Asked parse(const std::vector<std::string>& words) {
  Asked out;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    if (i + 1 == words.size()) throw std::invalid_argument(words[i] + " needs a number");
    const auto& value = words[i + 1];
    if (words[i] == "--seed") {
      out.seed = std::stoull(value);
    } else if (words[i] == "--round") {
      out.round = std::stoull(value);
    } else if (words[i] == "--rounds") {
      out.rounds = std::stoull(value);
    } else if (words[i] == "--minutes") {
      out.seconds = 60 * std::stod(value);
      out.draws = true;
    } else if (words[i] == "--seconds") {
      out.seconds = std::stod(value);
    } else if (words[i] == "--jobs") {
      out.jobs = static_cast<unsigned>(std::stoul(value));
    } else {
      throw std::invalid_argument(words[i] + " is not known: --seed, --round, --rounds, --minutes, --seconds, --jobs");
    }
  }
  return out;
}

/// Rounds of a seed, several at once, until the time is over or one of them fails.
class Campaign {
 public:
  explicit Campaign(Clock::time_point end) : end_(end) {}

  void run(std::uint64_t seed, std::uint64_t first, std::uint64_t count, unsigned jobs) {
    std::printf("stress: seed %llu\n", static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    std::atomic<std::uint64_t> next = first;
    std::vector<std::thread> threads;
    for (unsigned job = 0; job < jobs; ++job) {
      threads.emplace_back([&] {
        for (auto round = next++; round - first < count && goes_on(); round = next++) one(seed, round);
      });
    }
    for (auto& thread : threads) thread.join();
  }

  [[nodiscard]] bool goes_on() const { return !failed_ && Clock::now() < end_; }
  [[nodiscard]] bool failed() const { return failed_; }
  void tell() const {
    std::string out;
    for (const auto& [what, times] : totals_) out += text(out.empty() ? "" : ", ", times, " ", what);
    std::printf("stress: %s\n", out.c_str());
  }

 private:
  void one(std::uint64_t seed, std::uint64_t round) {
    Totals totals;
    const auto wrong = run_round(seed, round, totals);
    const std::lock_guard lock(mutex_);
    for (const auto& [what, times] : totals) totals_[what] += times;
    if (wrong.empty()) return;
    failed_ = true;
    std::printf("stress: %s\n", wrong.c_str());
  }

  const Clock::time_point end_;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  Totals totals_;
};

int drive(const Asked& asked) {
  Campaign campaign(Clock::now() + std::chrono::microseconds(static_cast<std::int64_t>(asked.seconds * 1e6)));
  if (asked.seed) {
    campaign.run(*asked.seed, asked.round.value_or(0), asked.round ? 1 : asked.rounds, asked.jobs);
  } else {
    for (const auto seed : kFixedSeeds) {
      if (!campaign.failed()) campaign.run(seed, 0, kFixedRounds, asked.jobs);
    }
    if (asked.draws && campaign.goes_on()) campaign.run(std::random_device()(), 0, asked.rounds, asked.jobs);
  }
  campaign.tell();
  return campaign.failed() ? 1 : 0;
}

}  // namespace
}  // namespace spillway::stress

int main(int count, char** words) {
  using namespace spillway::stress;
  const std::vector<std::string> arguments(words + 1, words + count);
  try {
    if (!arguments.empty() && arguments.front() == "--life") return live(parse_order(arguments));
    return drive(parse(arguments));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stress: %s\n", error.what());
    return 2;
  }
}
