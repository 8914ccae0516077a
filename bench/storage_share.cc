// Do processes that use one device at once get the whole of it, and fair parts?
//
// N processes each keep reads, writes or both in flight on a file of their own in DIR, through io_uring and O_DIRECT.
// Prints what each got and the sum, for each number of processes, beside one process alone; then what a Share costs a
// process that is alone. With --no-share nobody limits anybody, for comparison.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/storage/share.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/ring.h"

namespace {

using namespace spillway;  // NOLINT
using storage::Direction;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::string directory;
  std::vector<unsigned> crowds = {1, 2, 4};
  std::vector<unsigned> depths = {16};  ///< of the processes in turn
  std::string pattern = "write";        ///< read, write or mixed
  Bytes file = 128 * MiB;
  Bytes piece = 512 * KiB;
  Bytes budget = 8 * MiB;
  double seconds = 2;
  bool share = true;
};

/// What a process moved, where all can see it.
struct Result {
  Bytes read = 0, written = 0;
};

class Load {
 public:
  Load(const Settings& settings, unsigned number)
      : settings_(settings),
        depth_(settings.depths[number % settings.depths.size()]),
        file_(settings.directory + "/share-" + std::to_string(number), {.write = true, .create = true, .direct = true}),
        ring_(sys::make_ring(file_, 2 * depth_)),
        memory_(settings.piece),
        completions_(2 * std::size_t{depth_}) {
    std::fill(memory_.span().begin(), memory_.span().end(), std::byte{42});
    for (Bytes at = 0; at < settings.file; at += settings.piece) file_.write(memory_.span(), at);
    ring_->register_memory(memory_.span());
    if (!settings.share) return;
    share_.emplace(sys::device_of(settings.directory),
                   storage::ShareOptions{.read_budget = settings.budget, .write_budget = settings.budget});
  }

  Result run(Clock::time_point begin, Clock::time_point end) {
    const bool reads = settings_.pattern != "write", writes = settings_.pattern != "read";
    Result result;
    for (auto now = Clock::now(); now < end || in_flight_[0] + in_flight_[1] > 0; now = Clock::now()) {
      if (reads && now < end) fill(Direction::read);
      if (writes && now < end) fill(Direction::write);
      const std::size_t count = ring_->wait(completions_);
      now = Clock::now();
      for (std::size_t i = 0; i < count; ++i) take(completions_[i], now >= begin && now < end ? &result : nullptr);
    }
    return result;
  }

 private:
  void fill(Direction direction) {
    const auto lane = static_cast<std::size_t>(direction);
    while (in_flight_[lane] < depth_ && (!share_ || share_->try_acquire(direction, settings_.piece))) {
      ++in_flight_[lane];
      ring_->submit({lane == 0 ? sys::Operation::read : sys::Operation::write, memory_.span().data(),
                     static_cast<std::uint32_t>(settings_.piece), next_[lane], lane});
      next_[lane] = (next_[lane] + settings_.piece) % settings_.file;
    }
    ring_->flush();
  }
  void take(const sys::Completion& completion, Result* result) {
    if (completion.result != static_cast<std::int32_t>(settings_.piece)) throw std::runtime_error("a transfer failed");
    --in_flight_[completion.tag];
    if (share_) share_->release(static_cast<Direction>(completion.tag), settings_.piece);
    if (result != nullptr) (completion.tag == 0 ? result->read : result->written) += settings_.piece;
  }

  const Settings& settings_;
  unsigned depth_;
  sys::File file_;
  std::unique_ptr<sys::Ring> ring_;
  sys::Mapping memory_;
  std::vector<sys::Completion> completions_;
  std::optional<storage::Share> share_;
  std::array<unsigned, 2> in_flight_{};
  std::array<Bytes, 2> next_{};
};

/// Runs in a child; says with one byte that it is ready, and begins when it is told when.
void child(const Settings& settings, unsigned number, int ready, int start, Result& result) {
  Load load(settings, number);
  Clock::time_point begin;
  if (::write(ready, "r", 1) != 1 || ::read(start, &begin, sizeof begin) != sizeof begin) std::exit(1);
  const auto length = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(settings.seconds));
  result = load.run(begin, begin + length);
}

std::vector<Result> measure(const Settings& settings, unsigned count) {
  auto* results = static_cast<Result*>(
      ::mmap(nullptr, count * sizeof(Result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  int ready[2], start[2];
  if (results == MAP_FAILED || ::pipe(ready) != 0 || ::pipe(start) != 0) throw std::runtime_error("no memory or pipe");
  for (unsigned i = 0; i < count; ++i) {
    if (::fork() != 0) continue;
    int status = 0;
    try {
      child(settings, i, ready[1], start[0], results[i]);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "process %u: %s\n", i, error.what());
      status = 1;
    }
    ::_exit(status);
  }
  ::close(ready[1]);
  char word = 0;
  for (unsigned i = 0; i < count && ::read(ready[0], &word, 1) == 1; ++i) continue;
  const auto begin = Clock::now() + std::chrono::milliseconds(500);  // the first moments are not counted
  for (unsigned i = 0; i < count; ++i) std::ignore = ::write(start[1], &begin, sizeof begin);
  bool failed = false;
  for (int status = 0; ::wait(&status) > 0;) failed = failed || status != 0;
  for (const int fd : {ready[0], start[0], start[1]}) ::close(fd);
  std::vector<Result> all(results, results + count);
  ::munmap(results, count * sizeof(Result));
  if (failed) throw std::runtime_error("a process failed");
  return all;
}

void print(const char* what, const std::vector<Result>& results, Bytes Result::*bytes, double seconds) {
  Bytes sum = 0;
  for (const Result& result : results) sum += result.*bytes;
  if (sum == 0) return;
  std::printf("%zu processes  %-5s  sum %6.1f MB/s  parts", results.size(), what,
              static_cast<double>(sum) / 1e6 / seconds);
  for (const Result& result : results) {
    std::printf(" %5.1f %%", 100 * static_cast<double>(result.*bytes) / static_cast<double>(sum));
  }
  std::printf("\n");
  std::fflush(stdout);
}

void print_cost(const std::string& directory) {
  constexpr int kRounds = 2'000'000;
  storage::Share share(sys::device_of(directory));
  const auto begin = Clock::now();
  for (int i = 0; i < kRounds; ++i) {
    if (share.try_acquire(Direction::read, 1 * MiB)) share.release(Direction::read, 1 * MiB);
  }
  const std::chrono::duration<double, std::nano> time = Clock::now() - begin;
  std::printf("alone, to acquire and release costs %.0f ns\n", time.count() / kRounds);
}

std::vector<unsigned> numbers(const std::string& words) {
  std::vector<unsigned> all;
  for (std::size_t at = 0; at < words.size(); at = std::min(words.find(',', at), words.size() - 1) + 1) {
    all.push_back(static_cast<unsigned>(std::stoul(words.substr(at))));
  }
  return all;
}

[[noreturn]] void usage() {
  std::fputs(
      "storage_share DIR [--pattern read|write|mixed] [--processes N,N...] [--depths N,N...] [--mib N] [--piece KiB] "
      "[--budget MiB] [--seconds S] [--no-share]\n",
      stderr);
  std::exit(2);
}

Settings parse(int count, char** words) {
  Settings settings;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&]() -> std::string { return i + 1 < count ? words[++i] : (usage(), ""); };
    if (word == "--pattern") {
      settings.pattern = value();
    } else if (word == "--processes") {
      settings.crowds = numbers(value());
    } else if (word == "--depths") {
      settings.depths = numbers(value());
    } else if (word == "--mib") {
      settings.file = std::stoull(value()) * MiB;
    } else if (word == "--piece") {
      settings.piece = std::stoull(value()) * KiB;
    } else if (word == "--budget") {
      settings.budget = std::stoull(value()) * MiB;
    } else if (word == "--seconds") {
      settings.seconds = std::stod(value());
    } else if (word == "--no-share") {
      settings.share = false;
    } else if (!word.starts_with("--") && settings.directory.empty()) {
      settings.directory = word;
    } else {
      usage();
    }
  }
  if (settings.directory.empty()) usage();
  return settings;
}

void bench(const Settings& settings) {
  for (const unsigned crowd : settings.crowds) {
    const auto results = measure(settings, crowd);
    print("read", results, &Result::read, settings.seconds);
    print("write", results, &Result::written, settings.seconds);
    for (unsigned i = 0; i < crowd; ++i) {
      std::error_code ignored;
      std::filesystem::remove(settings.directory + "/share-" + std::to_string(i), ignored);
    }
  }
  if (settings.share) print_cost(settings.directory);
}

}  // namespace

int main(int count, char** words) {
  try {
    bench(parse(count, words));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "storage_share: %s\n", error.what());
    return 1;
  }
}
