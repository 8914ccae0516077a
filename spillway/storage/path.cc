#include "spillway/storage/path.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/storage/engine.h"
#include "spillway/storage/volume.h"

namespace spillway::storage {
namespace {

constexpr unsigned kMostDepth = 1024;

VolumeOptions volume_options(const PathOptions& options) {
  const Bytes capacity = round_up(options.capacity, kExtentAlignment);
  if (capacity < options.capacity) {
    throw Error(ErrorCode::does_not_fit, text("path:", options.name, " was asked for ", options.capacity, " bytes"), 0,
                options.directory.string());
  }
  if (options.queue_depth == 0 || options.queue_depth > kMostDepth) {
    throw Error(ErrorCode::bad_input, text("path:", options.name, " was given a queue depth of ", options.queue_depth,
                                           "; it must be 1 to ", kMostDepth));
  }
  return {options.directory, capacity, options.run, options.overwrite};
}

[[noreturn]] void refuse(const Transfer& transfer, const std::string& reason) {
  throw Error(ErrorCode::internal, text(transfer.what.empty() ? "a transfer" : transfer.what, " of ", transfer.bytes,
                                        " bytes at offset ", transfer.offset, ": ", reason));
}

void require_well_formed(const Transfer& transfer, Bytes capacity) {
  if (transfer.bytes == 0 || transfer.bytes % kTransferAlignment != 0) refuse(transfer, "its length is not aligned");
  if (transfer.offset % kExtentAlignment != 0) refuse(transfer, "its offset is not aligned");
  if (reinterpret_cast<std::uintptr_t>(transfer.memory) % kTransferAlignment != 0 || transfer.memory == nullptr) {
    refuse(transfer, "its memory is not aligned");
  }
  if (transfer.offset > capacity || transfer.bytes > capacity - transfer.offset) {
    refuse(transfer, text("it ends beyond the volume's capacity of ", capacity));
  }
  if (transfer.done == nullptr) refuse(transfer, "nobody is told of its end");
}

/// One thread waiting for one transfer.
class Waiter {
 public:
  static void done(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
    auto& self = *static_cast<Waiter*>(context);
    const std::lock_guard lock(self.mutex_);
    self.ended_ = true;
    self.error_ = error;
    self.end_.notify_one();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    end_.wait(lock, [this] { return ended_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  std::exception_ptr error_;
};

}  // namespace

class Path::Impl {
 public:
  Impl(const PathOptions& options, const sys::RingFactory& ring)
      : name_(options.name),
        volume_(volume_options(options)),
        engine_(volume_, {options.name, options.queue_depth, options.checksums}, ring) {
    if (!volume_.file().direct()) note(text("no O_DIRECT: ", volume_.file().direct_refusal()));
    if (engine_.ring_name() != "io_uring") note(text("no io_uring: served by a ", engine_.ring_name()));
  }

  ~Impl() {
    engine_.drain();
    if (remove_on_close_) volume_.remove();
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool register_memory(std::span<std::byte> memory) {
    const std::string refusal = engine_.register_memory(memory);
    if (refusal.empty()) return true;
    note(text("the kernel did not register ", human(memory.size()), " of buffers: ", refusal,
              " (raise the memlock limit: ulimit -l)"));
    return false;
  }

  Bytes allocate(Bytes bytes) {
    const Bytes left = volume_.capacity() - used_;
    if (bytes > left) {
      throw Error(ErrorCode::does_not_fit,
                  text("path:", name_, " cannot hold another ", human(bytes), ": ", human(left), " of its ",
                       human(volume_.capacity()), " are left. Give it a larger capacity"),
                  0, volume_.path().string());
    }
    return std::exchange(used_, used_ + round_up(bytes, kExtentAlignment));
  }

  void start(const Transfer& transfer) {
    require_well_formed(transfer, volume_.capacity());
    engine_.start(transfer);
  }

  void run(Transfer transfer) {
    if (engine_.on_thread()) refuse(transfer, "the path's own thread cannot wait for it");
    Waiter waiter;
    transfer.done = Waiter::done;
    transfer.context = &waiter;
    start(transfer);
    waiter.wait();
  }

  void drain() { engine_.drain(); }
  [[nodiscard]] Counters counters() const { return engine_.counters(); }
  [[nodiscard]] const Volume& volume() const noexcept { return volume_; }
  [[nodiscard]] const std::string& notice() const noexcept { return notice_; }
  void remove_on_close() noexcept { remove_on_close_ = true; }

 private:
  void note(const std::string& remark) {
    notice_ += notice_.empty() ? text("path:", name_, ": ", remark) : "; " + remark;
  }

  std::string name_;
  Volume volume_;
  Bytes used_ = 0;
  std::string notice_;
  bool remove_on_close_ = false;
  Engine engine_;
};

Path::Path(PathOptions options) : Path(std::move(options), sys::make_ring) {}
Path::Path(PathOptions options, const sys::RingFactory& ring) : impl_(std::make_unique<Impl>(options, ring)) {}
Path::~Path() = default;

bool Path::register_memory(std::span<std::byte> memory) {
  return impl_->register_memory(memory);
}
Bytes Path::allocate(Bytes bytes) {
  return impl_->allocate(bytes);
}
void Path::start(const Transfer& transfer) {
  impl_->start(transfer);
}
void Path::run(Transfer transfer) {
  impl_->run(transfer);
}
void Path::drain() {
  impl_->drain();
}
Counters Path::counters() const {
  return impl_->counters();
}
bool Path::direct() const noexcept {
  return impl_->volume().file().direct();
}
const std::string& Path::notice() const {
  return impl_->notice();
}
std::filesystem::path Path::volume() const {
  return impl_->volume().path();
}
void Path::remove_on_close() noexcept {
  impl_->remove_on_close();
}

}  // namespace spillway::storage
