#include "spillway/storage/path.h"

#include <cstdint>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/storage/engine.h"
#include "spillway/storage/share.h"
#include "spillway/storage/volume.h"
#include "spillway/storage/waiter.h"
#include "spillway/sys/device_id.h"

namespace spillway::storage {
namespace {

constexpr unsigned kMostDepth = 1024;

/// Rounded up to whole pieces.
Bytes area_bytes(const PathOptions& options, Bytes asked) {
  const Bytes bytes = round_up(asked, kExtentAlignment);
  if (bytes >= asked) return bytes;
  throw Error(ErrorCode::does_not_fit, text("path:", options.name, " was asked for ", asked, " bytes"), 0,
              options.device.empty() ? options.directory.string() : options.device.string());
}

VolumeOptions volume_options(const PathOptions& options) {
  VolumeOptions out;
  out.directory = options.directory;
  out.capacity = area_bytes(options, options.capacity);
  out.run = options.run;
  out.overwrite = options.overwrite;
  out.metadata = area_bytes(options, options.metadata);
  out.model = options.model;
  out.number = options.number;
  out.paths = options.paths;
  out.set = options.set;
  out.shard = options.shard;
  out.world = options.world;
  out.reopen = options.reopen;
  out.keep_records = options.keep_records;
  out.beside = options.beside;
  out.prewrite = options.prewrite;
  out.progress = options.progress;
  out.device = options.device;
  out.erase = options.erase;
  if (options.queue_depth == 0 || options.queue_depth > kMostDepth) {
    throw Error(ErrorCode::bad_input, text("path:", options.name, " was given a queue depth of ", options.queue_depth,
                                           "; it must be 1 to ", kMostDepth));
  }
  return out;
}

[[noreturn]] void refuse(const Transfer& transfer, const std::string& reason) {
  throw Error(ErrorCode::internal, text(transfer.what.empty() ? "a transfer" : transfer.what, " of ", transfer.bytes,
                                        " bytes at offset ", transfer.offset, ": ", reason));
}

void require_well_formed(const Transfer& transfer, Bytes capacity) {
  const bool metadata = transfer.area == Area::metadata;
  if (transfer.bytes == 0 || transfer.bytes % kTransferAlignment != 0) refuse(transfer, "its length is not aligned");
  if (metadata && transfer.bytes > kExtentAlignment) refuse(transfer, "metadata is moved in at most 1 MiB");
  if (transfer.offset % (metadata ? kTransferAlignment : kExtentAlignment) != 0) {
    refuse(transfer, "its offset is not aligned");
  }
  if (reinterpret_cast<std::uintptr_t>(transfer.memory) % kTransferAlignment != 0 || transfer.memory == nullptr) {
    refuse(transfer, "its memory is not aligned");
  }
  if (transfer.offset > capacity || transfer.bytes > capacity - transfer.offset) {
    refuse(transfer, text("it ends beyond the volume's ", metadata ? "metadata" : "capacity", " of ", capacity));
  }
  if (transfer.done == nullptr) refuse(transfer, "nobody is told of its end");
}

/// What a volume ends with: that of a path which could not be opened would be in the way of others.
struct Removal {
  Volume& volume;
  bool wanted;
  ~Removal() {
    if (wanted) volume.remove();
  }
};

}  // namespace

class Path::Impl {
 public:
  Impl(const PathOptions& options, const sys::RingFactory& ring)
      : name_(options.name),
        volume_(volume_options(options)),
        removal_{volume_, !options.reopen},
        engine_(volume_, {options.name, options.queue_depth, options.checksums}, ring, join(options)) {
    if (!volume_.notice().empty()) note(text(": ", volume_.path().string(), ": ", volume_.notice()));
    for (const std::string& remark : remarks(volume_.probe())) note(" " + remark);
    if (engine_.ring_name() != "io_uring") note(text(": no io_uring: served by a ", engine_.ring_name()));
    removal_.wanted = false;
  }

  ~Impl() { engine_.drain(); }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool register_memory(std::span<std::byte> memory) {
    const std::string refusal = engine_.register_memory(memory);
    if (refusal.empty()) return true;
    note(text(": the kernel did not register ", human(memory.size()), " of buffers: ", refusal,
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
    require_well_formed(transfer, transfer.area == Area::metadata ? volume_.metadata() : volume_.capacity());
    engine_.start(transfer);
  }

  void sync(Done done, void* context, std::uint64_t token) {
    if (done == nullptr) throw Error(ErrorCode::internal, text("path:", name_, ": a sync of which nobody is told"));
    engine_.sync(done, context, token);
  }

  [[nodiscard]] PieceMark mark(Bytes offset) const {
    require_piece(offset, 0);
    return engine_.mark(offset);
  }

  void expect(Bytes offset, const PieceMark& mark) {
    require_piece(offset, mark.bytes);
    engine_.expect(offset, mark);
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
  void remove_on_close(bool remove) noexcept { removal_.wanted = remove; }

 private:
  std::unique_ptr<Share> join(const PathOptions& options) {
    if (!options.share) return nullptr;
    try {
      return std::make_unique<Share>(sys::whole_device(sys::device_of(volume_.path())), *options.share);
    } catch (const Error& error) {
      note(text(": not sharing the drive fairly with other processes: ", error.what()));
      return nullptr;
    }
  }

  void require_piece(Bytes offset, Bytes bytes) const {
    if (offset % kExtentAlignment == 0 && offset < volume_.capacity() && bytes % kTransferAlignment == 0 &&
        bytes <= kExtentAlignment) {
      return;
    }
    throw Error(ErrorCode::internal, text("path:", name_, " has no piece of ", bytes, " bytes at offset ", offset));
  }

  /// `remark` goes on where the path's name ends.
  void note(const std::string& remark) { notice_ += text(notice_.empty() ? "" : "; ", "path:", name_, remark); }

  std::string name_;
  Volume volume_;
  Bytes used_ = 0;
  std::string notice_;
  Removal removal_;
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
void Path::sync(Done done, void* context, std::uint64_t token) {
  impl_->sync(done, context, token);
}
void Path::sync() {
  Waiter waiter;
  sync(&Waiter::done, &waiter, 0);
  waiter.wait();
}
PieceMark Path::mark(Bytes offset) const {
  return impl_->mark(offset);
}
void Path::expect(Bytes offset, const PieceMark& mark) {
  impl_->expect(offset, mark);
}
Bytes Path::capacity() const noexcept {
  return impl_->volume().capacity();
}
Bytes Path::metadata() const noexcept {
  return impl_->volume().metadata();
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
bool Path::is_displaced() const {
  return impl_->volume().is_displaced();
}
void Path::remove_on_close(bool remove) noexcept {
  impl_->remove_on_close(remove);
}

}  // namespace spillway::storage
