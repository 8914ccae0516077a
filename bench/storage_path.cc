// How fast is a storage path, and what does it cost in CPU? Reads, writes, and both at once, through the real engine.
//
// Prints one line per pattern: GB/s (1e9) each way, CPU seconds per GB of this process (user, system, and the kernel's
// I/O workers), and the share of one core. With --ask the patterns are those that standard input names, line by line;
// there is also `fill`, which writes everything once. `bench/storage_vs_fio.py` and `bench/storage_vs_deepspeed.py` put
// others beside it.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/noise.h"
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
  Bytes transfer = 0;       ///< 0: 8 MiB and 40 MiB, one after the other
  std::size_t streams = 4;  ///< transfers outstanding
  double seconds = 2;
  unsigned depth = 16;
  bool ask = false;
  bool checksums = true;
};

void print(const char* pattern, Bytes transfer, const machine::LoadResult& result) {
  const double gigabytes = static_cast<double>(result.read + result.written) / 1e9;
  std::printf("%-11s %4llu MiB  read %6.3f GB/s  write %6.3f GB/s  cpu %.3f s/GB  %3.0f %% of a core\n", pattern,
              static_cast<unsigned long long>(transfer / MiB), result.read_rate() / 1e9, result.write_rate() / 1e9,
              result.cpu_seconds / gigabytes, 100 * result.cpu_seconds / result.seconds);
  std::fflush(stdout);
}

void measure(storage::Path& path, std::span<std::byte> memory, Bytes transfer, const std::string& pattern,
             const Settings& settings) {
  machine::Load load(path, memory, {0, settings.volume}, transfer);
  if (pattern == "fill") return print("fill", transfer, load.fill(settings.streams));
  const std::size_t readers = pattern == "read" ? settings.streams : pattern == "mixed" ? settings.streams / 2 : 0;
  print(pattern.c_str(), transfer, load.run(readers, settings.streams - readers, settings.seconds));
}

void answer(const Settings& settings) {
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
  const memory::Arena arena(settings.streams * std::max<Bytes>(transfers.back(), 8 * MiB));
  path.register_memory(arena.span());
  if (!path.notice().empty()) std::printf("note: %s\n", path.notice().c_str());
  bench::fill_with_noise(arena.span());
  const Bytes first = settings.ask ? transfers.back() : 8 * MiB;
  print("first write", first, machine::Load(path, arena.span(), {0, settings.volume}, first).fill(settings.streams));
  if (settings.ask) {
    for (std::string pattern; std::getline(std::cin, pattern);) {
      measure(path, arena.span(), transfers.back(), pattern, settings);
    }
    return;
  }
  for (const Bytes transfer : transfers) {
    for (const std::string pattern : {"read", "write", "mixed"}) {
      if (settings.pattern != "all" && settings.pattern != pattern) continue;
      measure(path, arena.span(), transfer, pattern, settings);
    }
  }
}

Settings parse(int count, char** words) {
  Settings settings;
  bench::Arguments arguments(
      count, words,
      "storage_path DIR [--pattern read|write|mixed|all] [--mib-volume N] [--mib N] [--streams N] [--seconds S] "
      "[--depth N] [--ask] [--no-checksums]");
  settings.pattern = arguments.text("--pattern", settings.pattern);
  settings.volume = arguments.number("--mib-volume", settings.volume / MiB) * MiB;
  settings.transfer = arguments.number("--mib", settings.transfer / MiB) * MiB;
  settings.streams = arguments.number("--streams", settings.streams);
  settings.seconds = arguments.real("--seconds", settings.seconds);
  settings.depth = static_cast<unsigned>(arguments.number("--depth", settings.depth));
  settings.ask = arguments.flag("--ask");
  settings.checksums = !arguments.flag("--no-checksums");
  settings.directory = arguments.rest(1, 1).front();
  if (settings.streams == 0) arguments.refuse();
  return settings;
}

}  // namespace

int main(int count, char** words) {
  return bench::finish("storage_path", [&] { answer(parse(count, words)); });
}
