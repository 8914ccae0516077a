// How long does an update take whose state lies on storage paths? Every chunk's state and gradient are read, updated by
// the real kernel, and the state is written back to new places, through the real pool, with a window of a few chunks.
//
// One line per step: seconds from the first read to the end of the last write (nothing is flushed), GB/s (1e9) each
// way, staging memory, CPU. State: bf16 weight, 16-bit remainder, fp32 moments (12 bytes per parameter); the gradient
// is bf16 and stays where it is. With --ask a step is made for every line on standard input, until its end.
// `bench/storage_vs_deepspeed.py` and `bench/storage_vs_fio.py` put others beside it.
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <iostream>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>

#include "bench/arguments.h"
#include "spillway/base/error.h"
#include "spillway/kernels/update.h"
#include "spillway/memory/arena.h"
#include "spillway/storage/pool.h"
#include "spillway/sys/thread.h"

namespace {

using namespace spillway;  // NOLINT
using storage::Direction;
using Clock = std::chrono::steady_clock;

constexpr Bytes kStateBytes = 12;  ///< of a parameter
constexpr Bytes kGradBytes = 2;

struct Settings {
  std::vector<std::string> directories;
  std::uint64_t params = 494'032'768;
  std::uint64_t chunk = 2 * MiB;  ///< parameters
  std::size_t window = 7;         ///< chunks in memory
  unsigned threads = 2;           ///< that update
  unsigned depth = 16;
  unsigned steps = 3;
  bool ask = false;
  bool gradients = true;  ///< on the paths; else one in memory stands for all
  bool checksums = true;
};

/// A chunk's parts on the paths.
struct Chunk {
  std::uint64_t params = 0;
  std::vector<storage::Place> state, grad;
};

std::vector<storage::Place> places_for(Bytes bytes) {
  return std::vector<storage::Place>(ceil_div(bytes, storage::kExtentAlignment));
}

/// Of padded arrays that pieces and kernels like.
Bytes state_bytes(std::uint64_t params) {
  return round_up(params * kStateBytes, storage::kTransferAlignment);
}
Bytes grad_bytes(std::uint64_t params) {
  return round_up(params * kGradBytes, storage::kTransferAlignment);
}

/// Slots of memory go round the chunks: read, wait for an updater, write.
class Update {
 public:
  Update(storage::Pool& pool, std::span<std::byte> memory, const Settings& settings)
      : pool_(pool), settings_(settings), slots_(settings.window) {
    for (std::uint64_t at = 0; at < settings.params; at += settings.chunk) {
      const std::uint64_t params = std::min(settings.chunk, settings.params - at);
      chunks_.push_back({params, places_for(state_bytes(params)), places_for(grad_bytes(params))});
    }
    const Bytes each = state_bytes(settings.chunk) + grad_bytes(settings.chunk);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i] = {this, memory.data() + i * each, places_for(state_bytes(settings.chunk))};
    }
    for (unsigned i = 0; i < settings.threads; ++i) updaters_.emplace_back([this] { update_all(); });
  }

  ~Update() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      ready_cv_.notify_all();
    }
    for (std::thread& updater : updaters_) updater.join();
  }
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  /// Writes every chunk once.
  void fill() {
    Slot& slot = slots_.front();
    for (Chunk& chunk : chunks_) {
      fill(chunk, slot);
      pool_.run(request(Direction::write, slot.memory, state_bytes(chunk.params), chunk.state));
      pool_.run(request(Direction::write, grad_of(slot), grad_bytes(chunk.params), chunk.grad));
    }
  }

  /// Seconds of one.
  double step() {
    const auto begin = Clock::now();
    {
      const std::lock_guard lock(mutex_);
      ++step_;
      next_ = 0;
      left_ = chunks_.size();
    }
    for (Slot& slot : slots_) take_chunk(slot);
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return left_ == 0 || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

 private:
  struct Slot {
    Update* update = nullptr;
    std::byte* memory = nullptr;  ///< the state, and behind it the gradient
    std::vector<storage::Place> next;
    Chunk* chunk = nullptr;
    std::uint64_t number = 0;
    unsigned reads = 0;  ///< under way; guarded by mutex_
  };

  [[nodiscard]] std::byte* grad_of(const Slot& slot) const { return slot.memory + state_bytes(settings_.chunk); }

  /// Sixteen-bit patterns of small finite numbers.
  void fill(const Chunk& chunk, const Slot& slot) const {
    auto* weight = reinterpret_cast<std::uint16_t*>(slot.memory);
    auto* moments = reinterpret_cast<float*>(weight + 2 * chunk.params);
    auto* grad = reinterpret_cast<std::uint16_t*>(grad_of(slot));
    for (std::uint64_t i = 0; i < chunk.params; ++i) {
      const auto h = static_cast<std::uint32_t>(i * 2654435761U);
      weight[i] = static_cast<std::uint16_t>(0x3C00 | (h & 0x80FF));
      weight[chunk.params + i] = static_cast<std::uint16_t>(h >> 16);
      moments[i] = 1e-4F;
      moments[chunk.params + i] = 1e-6F;
      grad[i] = static_cast<std::uint16_t>(0x3A00 | (h >> 8 & 0x80FF));
    }
  }

  storage::Pool::Request request(Direction direction, std::byte* memory, Bytes bytes,
                                 std::span<storage::Place> places) {
    storage::Pool::Request request;
    request.direction = direction;
    request.memory = memory;
    request.bytes = bytes;
    request.places = places;
    request.what = "a measurement";
    return request;
  }

  void start(Slot& slot, storage::Pool::Request request, storage::Done done) {
    request.deadline = slot.number;
    request.done = done;
    request.context = &slot;
    try {
      pool_.start(request);
    } catch (...) {
      fail(std::current_exception());
    }
  }

  /// Reads the next chunk, if any is left.
  void take_chunk(Slot& slot) {
    {
      const std::lock_guard lock(mutex_);
      if (next_ == chunks_.size()) return;
      slot.chunk = &chunks_[next_];
      slot.number = next_++;
      slot.reads = settings_.gradients ? 2 : 1;
    }
    const std::uint64_t params = slot.chunk->params;
    if (settings_.gradients) {
      start(slot, request(Direction::read, grad_of(slot), grad_bytes(params), slot.chunk->grad), &Update::read);
    }
    start(slot, request(Direction::read, slot.memory, state_bytes(params), slot.chunk->state), &Update::read);
  }

  static void read(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
    auto& slot = *static_cast<Slot*>(context);
    Update& self = *slot.update;
    if (error) return self.fail(error);
    const std::lock_guard lock(self.mutex_);
    if (--slot.reads > 0) return;
    self.ready_.push_back(&slot);
    self.ready_cv_.notify_one();
  }

  static void written(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
    auto& slot = *static_cast<Slot*>(context);
    Update& self = *slot.update;
    if (error) return self.fail(error);
    auto& places = slot.chunk->state;
    std::swap_ranges(places.begin(), places.end(), slot.next.begin());
    self.pool_.release(std::span(slot.next).first(places.size()));
    self.take_chunk(slot);
    const std::lock_guard lock(self.mutex_);
    if (--self.left_ == 0) self.ended_.notify_all();
  }

  void update_all() {
    sys::enter_service_thread("update");
    while (Slot* slot = wait_for_slot()) {
      update(*slot);
      const Bytes bytes = state_bytes(slot->chunk->params);
      start(*slot,
            request(Direction::write, slot->memory, bytes, std::span(slot->next).first(slot->chunk->state.size())),
            &Update::written);
    }
  }

  Slot* wait_for_slot() {
    std::unique_lock lock(mutex_);
    ready_cv_.wait(lock, [this] { return stopping_ || !ready_.empty(); });
    if (ready_.empty()) return nullptr;
    Slot* slot = ready_.front();
    ready_.pop_front();
    return slot;
  }

  void update(const Slot& slot) const {
    const std::uint64_t n = slot.chunk->params;
    std::byte* weight = slot.memory;
    kernels::update({},
                    {.weight = weight,
                     .remainder = weight + 2 * n,
                     .moments = {weight + 4 * n, weight + 8 * n},
                     .grad = grad_of(slot),
                     .n = n},
                    {.learning_rate = 1e-5, .weight_decay = 0.01, .step = step_});
  }

  void fail(const std::exception_ptr& error) noexcept {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    ended_.notify_all();
  }

  storage::Pool& pool_;
  const Settings& settings_;
  std::vector<Chunk> chunks_;
  std::vector<Slot> slots_;
  std::int64_t step_ = 0;  ///< changed while nothing is under way

  std::mutex mutex_;  ///< guards everything below
  std::condition_variable ready_cv_, ended_;
  std::deque<Slot*> ready_;
  std::size_t next_ = 0, left_ = 0;  ///< chunks to take, and to be written
  bool stopping_ = false;
  std::exception_ptr failure_;

  std::vector<std::thread> updaters_;
};

/// All paths of equal size.
Bytes volume_bytes(const Settings& settings) {
  const std::uint64_t chunks = ceil_div(settings.params, settings.chunk);
  const std::uint64_t each = places_for(state_bytes(settings.chunk)).size();
  const std::uint64_t grad = places_for(grad_bytes(settings.chunk)).size();
  const std::uint64_t pieces = (chunks + settings.window) * each + chunks * grad;
  return ceil_div(pieces, settings.directories.size()) * storage::kExtentAlignment * 21 / 20;
}

/// A step, and what it was worth.
void measure(Update& update, const storage::Pool& pool, Bytes staging) {
  const auto moved = [&] {
    std::array<double, 2> sum{};
    for (const storage::PathState& path : pool.paths()) {
      sum[0] += static_cast<double>(path.moved.read);
      sum[1] += static_cast<double>(path.moved.written);
    }
    return sum;
  };
  const auto before = moved();
  const double cpu = sys::process_cpu_seconds();
  const double seconds = update.step();
  const auto after = moved();
  std::printf("update %.3f s  read %.3f GB/s  write %.3f GB/s  staging %.0f MB  cpu %.2f s\n", seconds,
              (after[0] - before[0]) / 1e9 / seconds, (after[1] - before[1]) / 1e9 / seconds,
              static_cast<double>(staging) / 1e6, sys::process_cpu_seconds() - cpu);
  std::fflush(stdout);
}

void answer(const Settings& settings) {
  const Bytes each = state_bytes(settings.chunk) + grad_bytes(settings.chunk);
  const memory::Arena arena(settings.window * each);
  std::vector<std::unique_ptr<storage::Path>> paths;
  std::vector<storage::PoolPath> members;
  for (const std::string& directory : settings.directories) {
    storage::PathOptions options;
    options.name = std::to_string(paths.size());
    options.directory = directory;
    options.capacity = volume_bytes(settings);
    options.run = "bench";
    options.queue_depth = settings.depth;
    options.checksums = settings.checksums;
    paths.push_back(std::make_unique<storage::Path>(options));
    paths.back()->remove_on_close();
    paths.back()->register_memory(arena.span());
    if (!paths.back()->notice().empty()) std::printf("note: %s\n", paths.back()->notice().c_str());
    members.push_back({paths.back().get(), options.capacity, {}, options.name});
  }
  storage::Pool pool(members);
  Update update(pool, arena.span(), settings);
  update.fill();
  if (!settings.ask) {
    for (unsigned i = 0; i < settings.steps; ++i) measure(update, pool, arena.size());
    return;
  }
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) measure(update, pool, arena.size());
}

Settings parse(int count, char** words) {
  Settings settings;
  bench::Arguments arguments(
      count, words,
      "storage_update DIR... [--params N] [--chunk N] [--window N] [--threads N] [--depth N] [--steps N] [--ask] "
      "[--no-gradients] [--no-checksums]");
  settings.params = arguments.number("--params", settings.params);
  settings.chunk = arguments.number("--chunk", settings.chunk);
  settings.window = arguments.number("--window", settings.window);
  settings.threads = static_cast<unsigned>(arguments.number("--threads", settings.threads));
  settings.depth = static_cast<unsigned>(arguments.number("--depth", settings.depth));
  settings.steps = static_cast<unsigned>(arguments.number("--steps", settings.steps));
  settings.ask = arguments.flag("--ask");
  settings.gradients = !arguments.flag("--no-gradients");
  settings.checksums = !arguments.flag("--no-checksums");
  settings.directories = arguments.rest(1, std::numeric_limits<std::size_t>::max());
  if (settings.params == 0 || settings.chunk == 0 || settings.window == 0 || settings.threads == 0) arguments.refuse();
  return settings;
}

}  // namespace

int main(int count, char** words) {
  return bench::finish("storage_update", [&] { answer(parse(count, words)); });
}
