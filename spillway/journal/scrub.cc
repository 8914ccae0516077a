#include "spillway/journal/scrub.h"

#include <cstdlib>
#include <memory>
#include <new>
#include <set>

#include "spillway/base/interrupt.h"
#include "spillway/base/mutex.h"

namespace spillway::journal {
namespace {

/// So many pieces of each path are under way at a time.
constexpr std::size_t kDepth = 16;

class Scrub {
 public:
  explicit Scrub(std::span<storage::Path* const> paths) : paths_(paths), slots_(kDepth * paths.size()) {
    const auto bytes = slots_.size() * storage::kExtentAlignment;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(storage::kTransferAlignment, bytes)));
    if (!memory_) throw std::bad_alloc();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i] = {.scrub = this, .memory = memory_.get() + i * storage::kExtentAlignment};
      free_.push_back(&slots_[i]);
    }
  }

  Scrubbed run(std::span<const ScrubObject> objects) {
    try {
      read(objects);
    } catch (...) {  // what is in flight still writes to our memory
      wait();
      throw;
    }
    wait();
    const MutexLock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    return std::move(out_);
  }

 private:
  struct Slot {
    Scrub* scrub = nullptr;
    std::byte* memory = nullptr;
    DamagedPiece subject = {};
  };
  struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };

  void read(std::span<const ScrubObject> objects) {
    for (const auto& object : objects) {
      Bytes at = 0;
      std::uint32_t part = 0;
      for (const auto& piece : object.stored->pieces) {
        throw_if_interrupted();
        if (piece.part != part) at = 0;
        part = piece.part;
        if (seen_.insert(piece.place).second) read({object, piece, at, {}});
        at += piece.bytes;
      }
    }
  }

  void wait() {
    MutexLock lock(mutex_);
    while (free_.size() != slots_.size()) changed_.wait(lock);
  }

  Slot& take() {
    MutexLock lock(mutex_);
    while (free_.empty()) changed_.wait(lock);
    Slot& slot = *free_.back();
    free_.pop_back();
    return slot;
  }

  void read(DamagedPiece subject) {
    Slot& slot = take();
    slot.subject = std::move(subject);
    const auto& piece = slot.subject.piece;
    try {
      auto& path = *paths_[piece.place.path];
      const auto offset = piece.place.piece * storage::kExtentAlignment;
      path.expect(offset, {.checksum = piece.checksum, .bytes = piece.bytes});
      path.start({.direction = storage::Direction::read,
                  .memory = slot.memory,
                  .bytes = piece.bytes,
                  .offset = offset,
                  .done = &Scrub::ended,
                  .context = &slot,
                  .what = "a piece"});
    } catch (...) {
      ended(&slot, 0, std::current_exception());
    }
  }

  static void ended(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
    auto& slot = *static_cast<Slot*>(context);
    auto& self = *slot.scrub;
    const MutexLock lock(self.mutex_);
    self.out_.bytes += slot.subject.piece.bytes;
    try {
      if (error) self.blame(slot.subject, error);
    } catch (...) {
      self.failure_ = std::current_exception();
    }
    self.free_.push_back(&slot);
    self.changed_.notify_all();
  }

  void blame(DamagedPiece& subject, const std::exception_ptr& error) SPILLWAY_REQUIRES(mutex_) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& reason) {
      subject.reason = reason.what();
    }
    out_.damage.push_back(std::move(subject));
  }

  const std::span<storage::Path* const> paths_;
  std::unique_ptr<std::byte, Free> memory_;
  std::vector<Slot> slots_;
  std::set<storage::Place> seen_;

  Mutex mutex_;
  Condition changed_;
  std::vector<Slot*> free_ SPILLWAY_GUARDED_BY(mutex_);
  Scrubbed out_ SPILLWAY_GUARDED_BY(mutex_);
  /// Damage that could not be noted, for want of memory.
  std::exception_ptr failure_ SPILLWAY_GUARDED_BY(mutex_);
};

}  // namespace

Scrubbed scrub(std::span<storage::Path* const> paths, std::span<const ScrubObject> objects) {
  return Scrub(paths).run(objects);
}

}  // namespace spillway::journal
