// How fast is a storage path, and what does it cost in CPU? Reads, writes, and both at once, through the real engine.
//
// Prints one line per pattern: GB/s (1e9) each way, CPU seconds per GB of this process (user, system, and the kernel's
// I/O workers), and the share of one core. `bench/storage_vs_fio.sh` puts fio beside it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/memory/arena.h"
#include "spillway/storage/path.h"
#include "spillway/sys/thread.h"

namespace {

using namespace spillway;  // NOLINT
using Clock = std::chrono::steady_clock;
using storage::Direction;

struct Settings {
  std::string directory;
  std::string pattern = "all";  ///< read, write, mixed or all
  Bytes volume = 6 * GiB;
  Bytes transfer = 0;  ///< 0: 8 MiB and 40 MiB, one after the other
  double seconds = 2;
  unsigned depth = 16;
  bool checksums = true;
};

/// A fixed number of transfers outstanding: each one that ends starts the next, walking through its part of the volume.
class Load {
 public:
  Load(storage::Path& path, std::span<std::byte> memory, Bytes transfer, Bytes volume)
      : path_(path), memory_(memory), transfer_(transfer), volume_(volume / transfer * transfer) {}

  /// Adds a stream that keeps one transfer outstanding, in its own part of the volume.
  void add(Direction direction, std::size_t stream, std::size_t streams) {
    const Bytes slots = volume_ / transfer_;
    const Bytes first = slots * stream / streams * transfer_;
    const Bytes last = slots * (stream + 1) / streams * transfer_;
    streams_.push_back({this, direction, memory_.data() + streams_.size() * transfer_, first, last, first});
  }

  /// Runs until `limit` seconds or, with `once`, until each stream has walked its part once.
  void run(double limit, bool once) {
    once_ = once;
    end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit));
    for (Stream& stream : streams_) start(stream);
    path_.drain();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  struct Stream {
    Load* load;
    Direction direction;
    std::byte* memory;
    Bytes first, last, next;
  };

  void start(Stream& stream) {
    storage::Transfer transfer;
    transfer.direction = stream.direction;
    transfer.memory = stream.memory;
    transfer.bytes = transfer_;
    transfer.offset = stream.next;
    transfer.done = &Load::done;
    transfer.context = &stream;
    stream.next += transfer_;
    path_.start(transfer);
  }

  static void done(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
    auto& stream = *static_cast<Stream*>(context);
    Load& load = *stream.load;
    if (error) load.failure_ = error;
    if (error || (load.once_ && stream.next == stream.last) || (!load.once_ && Clock::now() >= load.end_)) return;
    if (stream.next == stream.last) stream.next = stream.first;
    load.start(stream);
  }

  storage::Path& path_;
  std::span<std::byte> memory_;
  Bytes transfer_;
  Bytes volume_;
  bool once_ = false;
  Clock::time_point end_;
  std::vector<Stream> streams_;
  std::exception_ptr failure_;
};

/// Between construction and `print`: bytes, seconds, CPU.
class Stopwatch {
 public:
  explicit Stopwatch(const storage::Path& path)
      : path_(path), before_(path.counters()), cpu_(sys::process_cpu_seconds()), began_(Clock::now()) {}

  void print(const char* pattern, Bytes transfer) const {
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    const double cpu = sys::process_cpu_seconds() - cpu_;
    const storage::Counters now = path_.counters();
    const double read = static_cast<double>(now.read - before_.read) / 1e9;
    const double written = static_cast<double>(now.written - before_.written) / 1e9;
    std::printf("%-11s %3llu MiB  read %5.2f GB/s  write %5.2f GB/s  cpu %.3f s/GB  %3.0f %% of a core\n", pattern,
                static_cast<unsigned long long>(transfer / MiB), read / seconds, written / seconds,
                cpu / (read + written), 100 * cpu / seconds);
    std::fflush(stdout);
  }

 private:
  const storage::Path& path_;
  storage::Counters before_;
  double cpu_;
  Clock::time_point began_;
};

constexpr std::size_t kStreams = 4;

void measure(storage::Path& path, std::span<std::byte> memory, const Settings& settings, const std::string& pattern,
             Bytes transfer) {
  Load load(path, memory, transfer, settings.volume);
  for (std::size_t i = 0; i < kStreams; ++i) {
    const bool write = pattern == "write" || (pattern == "mixed" && i % 2 == 1);
    load.add(write ? Direction::write : Direction::read, i, kStreams);
  }
  const Stopwatch watch(path);
  load.run(settings.seconds, false);
  watch.print(pattern.c_str(), transfer);
}

void write_everything(storage::Path& path, std::span<std::byte> memory, Bytes volume) {
  constexpr Bytes kTransfer = 8 * MiB;
  Load load(path, memory, kTransfer, volume);
  for (std::size_t i = 0; i < kStreams; ++i) load.add(Direction::write, i, kStreams);
  const Stopwatch watch(path);
  load.run(0, true);
  watch.print("first write", kTransfer);
}

void bench(const Settings& settings) {
  storage::PathOptions options;
  options.directory = settings.directory;
  options.capacity = settings.volume;
  options.run = "bench";
  options.queue_depth = settings.depth;
  options.checksums = settings.checksums;
  storage::Path path(options);
  path.remove_on_close();
  std::vector<Bytes> transfers = {8 * MiB, 40 * MiB};
  if (settings.transfer > 0) transfers = {settings.transfer};
  const memory::Arena arena(kStreams * std::max<Bytes>(transfers.back(), 8 * MiB));
  path.register_memory(arena.span());
  if (!path.notice().empty()) std::printf("note: %s\n", path.notice().c_str());
  std::ranges::generate(arena.span(), [word = 1U]() mutable {
    word = word * 1664525 + 1013904223;
    return static_cast<std::byte>(word >> 24);
  });
  write_everything(path, arena.span(), settings.volume);
  for (const Bytes transfer : transfers) {
    // A piece is read at the length it was written with: 8 and 40 MiB are whole pieces, so any order of both works.
    for (const std::string pattern : {"read", "write", "mixed"}) {
      if (settings.pattern == "all" || settings.pattern == pattern) {
        measure(path, arena.span(), settings, pattern, transfer);
      }
    }
  }
}

[[noreturn]] void usage() {
  std::fputs(
      "storage_path DIR [--pattern read|write|mixed|all] [--gib N] [--mib N] [--seconds S] [--depth N] "
      "[--no-checksums]\n",
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
    } else if (word == "--gib") {
      settings.volume = std::stoull(value()) * GiB;
    } else if (word == "--mib") {
      settings.transfer = std::stoull(value()) * MiB;
    } else if (word == "--seconds") {
      settings.seconds = std::stod(value());
    } else if (word == "--depth") {
      settings.depth = static_cast<unsigned>(std::stoul(value()));
    } else if (word == "--no-checksums") {
      settings.checksums = false;
    } else if (!word.starts_with("--") && settings.directory.empty()) {
      settings.directory = word;
    } else {
      usage();
    }
  }
  if (settings.directory.empty()) usage();
  return settings;
}

}  // namespace

int main(int count, char** words) {
  try {
    bench(parse(count, words));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "storage_path: %s\n", error.what());
    return 1;
  }
}
