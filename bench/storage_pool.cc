// How fast are several storage paths together? Objects are read, written, and updated (read, then written to new
// places) through the real pool.
//
// Prints one line per pattern, or per interval with --every: GB/s (1e9) each way, of every path and in sum.
// `bench/storage_paths.py` sets up paths of known speeds and judges the figures.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bench/arguments.h"
#include "bench/noise.h"
#include "spillway/base/error.h"
#include "spillway/memory/arena.h"
#include "spillway/storage/pool.h"
#include "spillway/sys/thread.h"

namespace {

using namespace spillway;  // NOLINT
using storage::Direction;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::vector<std::string> directories;
  std::string pattern = "all";  ///< read, write, mixed, update or all
  Bytes volume = 1 * GiB;       ///< of each path
  Bytes object = 8 * MiB;
  double fill = 0.6;  ///< of all places are in use
  double seconds = 4;
  double every = 0;  ///< a line per so many seconds; 0: one for the pattern
  std::size_t streams = 8;
  unsigned depth = 16;
  bool checksums = true;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Streams with one request outstanding each. A stream owns objects, and goes round them: it reads each, or writes it
/// anew, or both.
class Load {
 public:
  Load(storage::Pool& pool, std::span<std::byte> memory, const Settings& settings) : pool_(pool), settings_(settings) {
    const auto all = static_cast<double>(settings.volume * settings.directories.size()) * settings.fill;
    const auto each = static_cast<std::size_t>(all / static_cast<double>(settings.object * settings.streams));
    for (std::size_t i = 0; i < settings.streams; ++i) {
      auto stream = std::make_unique<Stream>();
      stream->load = this;
      stream->memory = memory.data() + i * settings.object;
      stream->next.resize(settings.object / MiB);
      stream->objects.resize(std::max<std::size_t>(each, 1));
      streams_.push_back(std::move(stream));
    }
  }

  /// Writes every object once.
  void fill() { go("write", true); }
  void start(const std::string& pattern) {
    stop_ = false;
    go(pattern, false);
  }
  /// Parts of the content that is read and never written anew, by path: its layout bounds the reads.
  [[nodiscard]] std::vector<double> layout_of_reads() const {
    std::vector<double> parts(settings_.directories.size());
    double all = 0;
    for (const auto& stream : streams_) {
      if (!stream->reads || stream->writes) continue;
      for (const auto& object : stream->objects) {
        for (const storage::Place place : object) ++parts[place.path];
        all += static_cast<double>(object.size());
      }
    }
    for (double& part : parts) part = all > 0 ? part / all : 0;
    return parts;
  }
  void stop() {
    stop_ = true;
    pool_.drain();
    check();
  }

 private:
  struct Stream {
    Load* load;
    std::byte* memory;
    std::vector<storage::Place> next;  ///< of the version that is being written
    std::vector<std::vector<storage::Place>> objects;
    bool reads, writes;
    Direction direction;
    std::size_t at;
  };

  void go(const std::string& pattern, bool once) {
    once_ = once;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      Stream& stream = *streams_[i];
      stream.reads = pattern == "read" || pattern == "update" || (pattern == "mixed" && 2 * i < streams_.size());
      stream.writes = pattern == "write" || pattern == "update" || (pattern == "mixed" && 2 * i >= streams_.size());
      stream.direction = stream.reads ? Direction::read : Direction::write;
      stream.at = 0;
      request(stream);
    }
    if (!once) return;
    pool_.drain();
    check();
  }

  void request(Stream& stream) {
    storage::Pool::Request request;
    request.direction = stream.direction;
    request.memory = stream.memory;
    request.bytes = settings_.object;
    request.places = stream.direction == Direction::read ? stream.objects[stream.at] : stream.next;
    request.done = &Load::done;
    request.context = &stream;
    request.what = "a measurement";
    try {
      pool_.start(request);
    } catch (...) {
      fail(std::current_exception());
    }
  }

  static void done(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
    auto& stream = *static_cast<Stream*>(context);
    Load& load = *stream.load;
    if (error) return load.fail(error);
    if (stream.direction == Direction::write) {
      auto& places = stream.objects[stream.at];
      places.swap(stream.next);
      if (!stream.next.empty()) load.pool_.release(stream.next);
      stream.next.resize(load.settings_.object / MiB);
    }
    if (stream.reads && stream.writes && stream.direction == Direction::read) {
      stream.direction = Direction::write;
    } else {
      if (++stream.at == stream.objects.size()) {
        if (load.once_) return;
        stream.at = 0;
      }
      stream.direction = stream.reads ? Direction::read : Direction::write;
    }
    if (!load.stop_) load.request(stream);
  }

  void fail(const std::exception_ptr& error) noexcept {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    stop_ = true;
  }
  void check() {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

  storage::Pool& pool_;
  const Settings& settings_;
  std::vector<std::unique_ptr<Stream>> streams_;
  bool once_ = false;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::exception_ptr failure_;
};

/// What the paths have moved since the last line.
class Report {
 public:
  explicit Report(const storage::Pool& pool) : pool_(pool), before_(pool.paths()) {}

  void line(const std::string& label) {
    const auto now = pool_.paths();
    const double cpu = sys::process_cpu_seconds();
    const double seconds = seconds_since(since_);
    std::string each;
    double read = 0, written = 0;
    for (std::size_t i = 0; i < now.size(); ++i) {
      const double in = static_cast<double>(now[i].moved.read - before_[i].moved.read) / 1e9;
      const double out = static_cast<double>(now[i].moved.written - before_[i].moved.written) / 1e9;
      read += in;
      written += out;
      std::array<char, 64> words{};
      std::snprintf(words.data(), words.size(), "  %.3f+%.3f (%.3f+%.3f)", in / seconds, out / seconds,
                    now[i].speed.read / 1e9, now[i].speed.write / 1e9);
      each += words.data();
    }
    std::printf("%-8s read %.3f GB/s  write %.3f GB/s  cpu %.3f s/GB  paths, read+write (as distribution goes by):%s\n",
                label.c_str(), read / seconds, written / seconds, (cpu - cpu_) / (read + written), each.c_str());
    std::fflush(stdout);
    before_ = now;
    since_ = Clock::now();
    cpu_ = cpu;
  }

 private:
  const storage::Pool& pool_;
  std::vector<storage::PathState> before_;
  Clock::time_point since_ = Clock::now();
  double cpu_ = sys::process_cpu_seconds();
};

void measure(const storage::Pool& pool, Load& load, const Settings& settings, const std::string& pattern) {
  load.start(pattern);
  const auto begin = Clock::now();
  Report report(pool);
  const double every = settings.every > 0 ? settings.every : settings.seconds;
  for (int i = 1; seconds_since(begin) < settings.seconds; ++i) {
    std::this_thread::sleep_until(
        begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(i * every)));
    report.line(pattern);
  }
  load.stop();
  std::printf("layout  ");
  for (const double part : load.layout_of_reads()) std::printf(" %.3f", part);
  std::printf(" of what %s only reads lies on each path\n", pattern.c_str());
  std::fflush(stdout);
}

void answer(const Settings& settings) {
  std::vector<std::unique_ptr<storage::Path>> paths;
  std::vector<storage::PoolPath> members;
  const memory::Arena arena(settings.streams * settings.object);
  for (const std::string& directory : settings.directories) {
    storage::PathOptions options;
    options.name = std::to_string(paths.size());
    options.directory = directory;
    options.capacity = settings.volume;
    options.run = "bench";
    options.queue_depth = settings.depth;
    options.checksums = settings.checksums;
    paths.push_back(std::make_unique<storage::Path>(options));
    paths.back()->remove_on_close();
    paths.back()->register_memory(arena.span());
    if (!paths.back()->notice().empty()) std::printf("note: %s\n", paths.back()->notice().c_str());
    members.push_back({paths.back().get(), settings.volume, {}, options.name});
  }
  storage::Pool pool(members);
  bench::fill_with_noise(arena.span());
  Load load(pool, arena.span(), settings);
  Report first(pool);
  load.fill();
  first.line("first");
  for (const std::string pattern : {"write", "read", "mixed", "update"}) {
    if (settings.pattern == "all" || settings.pattern == pattern) measure(pool, load, settings, pattern);
  }
}

Settings parse(int count, char** words) {
  Settings settings;
  bench::Arguments arguments(
      count, words,
      "storage_pool DIR... [--pattern read|write|mixed|update|all] [--mib-volume N] [--mib-object N] [--fill SHARE] "
      "[--seconds S] [--every S] [--streams N] [--depth N] [--no-checksums]");
  settings.pattern = arguments.text("--pattern", settings.pattern);
  settings.volume = arguments.number("--mib-volume", settings.volume / MiB) * MiB;
  settings.object = arguments.number("--mib-object", settings.object / MiB) * MiB;
  settings.fill = arguments.real("--fill", settings.fill);
  settings.seconds = arguments.real("--seconds", settings.seconds);
  settings.every = arguments.real("--every", settings.every);
  settings.streams = arguments.number("--streams", settings.streams);
  settings.depth = static_cast<unsigned>(arguments.number("--depth", settings.depth));
  settings.checksums = !arguments.flag("--no-checksums");
  settings.directories = arguments.rest(1, std::numeric_limits<std::size_t>::max());
  if (settings.object == 0 || settings.streams == 0) arguments.refuse();
  return settings;
}

}  // namespace

int main(int count, char** words) {
  return bench::finish("storage_pool", [&] { answer(parse(count, words)); });
}
