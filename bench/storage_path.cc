// How fast is a storage path, and what does it cost in CPU? Reads, writes, and both at once, through the real engine.
//
// Prints one line per pattern: GB/s (1e9) each way, CPU seconds per GB of this process (user, system, and the kernel's
// I/O workers), and the share of one core. `bench/storage_vs_fio.sh` puts fio beside it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/machine/load.h"
#include "spillway/memory/arena.h"
#include "spillway/storage/path.h"

namespace {

using namespace spillway;  // NOLINT

struct Settings {
  std::string directory;
  std::string pattern = "all";  ///< read, write, mixed or all
  Bytes volume = 6 * GiB;
  Bytes transfer = 0;  ///< 0: 8 MiB and 40 MiB, one after the other
  double seconds = 2;
  unsigned depth = 16;
  bool checksums = true;
};

void print(const char* pattern, Bytes transfer, const machine::LoadResult& result) {
  const double gigabytes = static_cast<double>(result.read + result.written) / 1e9;
  std::printf("%-11s %3llu MiB  read %5.2f GB/s  write %5.2f GB/s  cpu %.3f s/GB  %3.0f %% of a core\n", pattern,
              static_cast<unsigned long long>(transfer / MiB), result.read_rate() / 1e9, result.write_rate() / 1e9,
              result.cpu_seconds / gigabytes, 100 * result.cpu_seconds / result.seconds);
  std::fflush(stdout);
}

constexpr std::size_t kStreams = 4;

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
  const machine::Load::Area area{0, settings.volume};
  print("first write", 8 * MiB, machine::Load(path, arena.span(), area, 8 * MiB).fill(kStreams));
  for (const Bytes transfer : transfers) {
    machine::Load load(path, arena.span(), area, transfer);
    for (const std::string pattern : {"read", "write", "mixed"}) {
      if (settings.pattern != "all" && settings.pattern != pattern) continue;
      const std::size_t readers = pattern == "read" ? kStreams : pattern == "mixed" ? kStreams / 2 : 0;
      print(pattern.c_str(), transfer, load.run(readers, kStreams - readers, settings.seconds));
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
