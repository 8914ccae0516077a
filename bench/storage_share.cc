// Do processes that use one device at once get the whole of it, and fair parts?
//
// N processes each keep transfers outstanding on a storage path of their own below DIR, all on one device, with a share
// of it (PathOptions::share). Prints what each got and the sum, for each number of processes, beside one process alone;
// then what a share costs a process that is alone. With --no-share nobody limits anybody, for comparison.
// `bench/storage_share.py` sets up a device of known speed and judges the figures.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "bench/arguments.h"
#include "bench/noise.h"
#include "spillway/base/error.h"
#include "spillway/machine/load.h"
#include "spillway/memory/arena.h"
#include "spillway/storage/share.h"
#include "spillway/sys/device_id.h"

namespace {

using namespace spillway;  // NOLINT
using storage::Direction;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::string directory;
  std::vector<std::uint64_t> crowds = {1, 2, 4};
  std::vector<std::uint64_t> depths = {16};  ///< of the processes in turn
  std::string pattern = "all";               ///< read, write, mixed or all
  Bytes volume = 128 * MiB;                  ///< of each process
  Bytes transfer = 8 * MiB;
  Bytes budget = 16 * MiB;
  double seconds = 3;
  bool share = true;
};

constexpr std::size_t kStreams = 8;
/// Not counted: before the window of the measurement, and after it.
constexpr auto kMargin = std::chrono::milliseconds(500);

/// What a process moved, where all can see it.
struct Result {
  Bytes read = 0, written = 0;
};

std::filesystem::path directory_of(const Settings& settings, std::size_t number) {
  return std::filesystem::path(settings.directory) / text("share-", number);
}

storage::PathOptions path_options(const Settings& settings, std::size_t number) {
  storage::PathOptions options;
  options.name = std::to_string(number);
  options.directory = directory_of(settings, number);
  options.capacity = settings.volume;
  options.run = "bench";
  options.queue_depth = static_cast<unsigned>(settings.depths[number % settings.depths.size()]);
  if (settings.share) options.share = {.read_budget = settings.budget, .write_budget = settings.budget};
  return options;
}

Clock::duration length(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Runs in a child; says with one byte that it is ready, and begins when it is told when.
void child(const Settings& settings, const std::string& pattern, std::size_t number, int ready, int start,
           Result& result) {
  storage::Path path(path_options(settings, number));
  path.remove_on_close();
  const memory::Arena arena(kStreams * settings.transfer);
  path.register_memory(arena.span());
  if (!path.notice().empty()) std::fprintf(stderr, "note: %s\n", path.notice().c_str());
  bench::fill_with_noise(arena.span());
  machine::Load load(path, arena.span(), {0, settings.volume}, settings.transfer);
  load.fill(kStreams);
  Clock::time_point begin;
  if (::write(ready, "r", 1) != 1 || ::read(start, &begin, sizeof begin) != sizeof begin) std::exit(1);
  const std::size_t readers = pattern == "read" ? kStreams : pattern == "mixed" ? kStreams / 2 : 0;
  std::thread work([&] {
    load.run(readers, kStreams - readers, settings.seconds + 2 * std::chrono::duration<double>(kMargin).count());
  });
  std::this_thread::sleep_until(begin);
  const storage::Counters before = path.counters();
  std::this_thread::sleep_until(begin + length(settings.seconds));
  const storage::Counters after = path.counters();
  work.join();
  result = {after.read - before.read, after.written - before.written};
}

/// The exit status of a child; one that fails says so, and the others do not wait for it.
int attempt(const Settings& settings, const std::string& pattern, std::size_t number, int ready, int start,
            Result& result) {
  const int status = bench::finish("storage_share", [&] { child(settings, pattern, number, ready, start, result); });
  if (status != 0) std::ignore = ::write(ready, "f", 1);
  return status;
}

std::vector<Result> measure(const Settings& settings, const std::string& pattern, std::size_t count) {
  auto* results = static_cast<Result*>(
      ::mmap(nullptr, count * sizeof(Result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  int ready[2], start[2];
  if (results == MAP_FAILED || ::pipe(ready) != 0 || ::pipe(start) != 0) {
    throw Error(ErrorCode::io, "no shared memory or no pipe", errno);
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::filesystem::create_directory(directory_of(settings, i));
    if (::fork() == 0) ::_exit(attempt(settings, pattern, i, ready[1], start[0], results[i]));
  }
  ::close(ready[1]);
  char word = 0;
  for (std::size_t i = 0; i < count && ::read(ready[0], &word, 1) == 1; ++i) continue;
  const auto begin = Clock::now() + kMargin;
  for (std::size_t i = 0; i < count; ++i) std::ignore = ::write(start[1], &begin, sizeof begin);
  bool failed = false;
  for (int status = 0; ::wait(&status) > 0;) failed = failed || status != 0;
  for (const int fd : {ready[0], start[0], start[1]}) ::close(fd);
  std::vector<Result> all(results, results + count);
  ::munmap(results, count * sizeof(Result));
  for (std::size_t i = 0; i < count; ++i) std::filesystem::remove_all(directory_of(settings, i));
  if (failed) throw Error(ErrorCode::io, "a process failed");
  return all;
}

void print(const std::string& pattern, const char* direction, const std::vector<Result>& results, Bytes Result::*bytes,
           double seconds) {
  Bytes sum = 0;
  for (const Result& result : results) sum += result.*bytes;
  if (sum == 0) return;
  std::printf("%zu processes  %-5s  %-5s  sum %6.1f MB/s  parts", results.size(), pattern.c_str(), direction,
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

void answer(const Settings& settings) {
  for (const std::string pattern : {"read", "write", "mixed"}) {
    if (settings.pattern != "all" && settings.pattern != pattern) continue;
    for (const std::uint64_t crowd : settings.crowds) {
      const auto results = measure(settings, pattern, crowd);
      print(pattern, "read", results, &Result::read, settings.seconds);
      print(pattern, "write", results, &Result::written, settings.seconds);
    }
  }
  if (settings.share) print_cost(settings.directory);
}

Settings parse(int count, char** words) {
  Settings settings;
  bench::Arguments arguments(
      count, words,
      "storage_share DIR [--pattern read|write|mixed|all] [--processes N,N...] [--depths N,N...] "
      "[--mib-volume N] [--mib N] [--budget MiB] [--seconds S] [--no-share]");
  settings.pattern = arguments.text("--pattern", settings.pattern);
  settings.crowds = arguments.numbers("--processes", settings.crowds);
  settings.depths = arguments.numbers("--depths", settings.depths);
  settings.volume = arguments.number("--mib-volume", settings.volume / MiB) * MiB;
  settings.transfer = arguments.number("--mib", settings.transfer / MiB) * MiB;
  settings.budget = arguments.number("--budget", settings.budget / MiB) * MiB;
  settings.seconds = arguments.real("--seconds", settings.seconds);
  settings.share = !arguments.flag("--no-share");
  settings.directory = arguments.rest(1, 1).front();
  return settings;
}

}  // namespace

int main(int count, char** words) {
  return bench::finish("storage_share", [&] { answer(parse(count, words)); });
}
