#include "spillway/execute/group_bank.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include "spillway/execute/volumes.h"
#include "spillway/memory/arena.h"

namespace spillway::execute {
namespace {

constexpr std::size_t kLeastSlots = 3;  ///< one read, one worked on, one written
constexpr std::size_t kMostSlots = 32;

class MemoryBank final : public GroupBank {
 public:
  explicit MemoryBank(const std::vector<Bytes>& sizes) {
    Bytes end = 0;
    for (const Bytes size : sizes) offsets_.push_back(std::exchange(end, end + size));
    arena_ = memory::Arena(end);
  }

  void pass(std::span<const std::size_t> groups, bool /*keep*/, const Work& work) override {
    for (const std::size_t group : groups) work(group, arena_.data() + offsets_[group]);
  }

 private:
  std::vector<Bytes> offsets_;
  memory::Arena arena_;
};

std::size_t slot_count(Bytes largest, Bytes staging) {
  return std::clamp<std::size_t>(staging / std::max<Bytes>(largest, 1), kLeastSlots, kMostSlots);
}

Bytes largest_of(const std::vector<Bytes>& sizes) {
  return sizes.empty() ? 0 : std::ranges::max(sizes);
}

std::size_t group_pieces(Bytes bytes) {
  return ceil_div(bytes, storage::kExtentAlignment);
}

class PathBank final : public GroupBank {
 public:
  PathBank(const std::vector<Bytes>& sizes, Bytes staging, std::vector<std::unique_ptr<storage::Path>> paths)
      : sizes_(sizes),
        arena_(slot_count(largest_of(sizes), staging) * largest_of(sizes)),
        paths_(std::move(paths)),
        pool_(pool_paths(paths_, {})),
        groups_(sizes.size()),
        slots_(slot_count(largest_of(sizes), staging)) {
    const Bytes largest = largest_of(sizes);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].bank = this;
      slots_[i].memory = arena_.data() + i * largest;
      slots_[i].next.resize(group_pieces(largest));
    }
    for (const auto& path : paths_) {
      path->remove_on_close();
      path->register_memory(arena_.span());
    }
  }

  void pass(std::span<const std::size_t> groups, bool keep, const Work& work) override {
    failure_ = nullptr;
    order_ = groups;
    next_ = 0;
    try {
      for (at_ = 0; at_ < groups.size(); ++at_) {
        Slot& slot = slots_[at_ % slots_.size()];
        wait_for(slot);
        work(groups[at_], slot.memory);
        keep ? write(slot) : set(slot, Slot::Stage::idle);
      }
    } catch (...) {
      fail(std::current_exception());
    }
    settle();
  }

 private:
  struct Slot {
    enum class Stage { idle, reading, loaded, writing };
    PathBank* bank = nullptr;
    std::byte* memory = nullptr;
    std::vector<storage::Place> next;  ///< of the write under way, and then what it has replaced
    std::size_t group = 0;
    Stage stage = Stage::idle;  ///< guarded by mutex_
  };

  /// Starts reads of the groups whose turn comes next, as far as there are slots for them.
  void read_ahead() {
    for (; next_ < std::min(order_.size(), at_ + slots_.size()); ++next_) {
      Slot& slot = slots_[next_ % slots_.size()];
      {
        const std::lock_guard lock(mutex_);
        if (slot.stage != Slot::Stage::idle) return;
        slot.stage = Slot::Stage::reading;
      }
      slot.group = order_[next_];
      load(slot);
    }
  }

  void load(Slot& slot) {
    auto& places = groups_[slot.group];
    if (!places.empty()) return start(slot, storage::Direction::read, places, &PathBank::loaded);
    std::memset(slot.memory, 0, sizes_[slot.group]);
    set(slot, Slot::Stage::loaded);
  }

  void write(Slot& slot) {
    set(slot, Slot::Stage::writing);
    start(slot, storage::Direction::write, std::span(slot.next).first(group_pieces(sizes_[slot.group])),
          &PathBank::written);
  }

  void start(Slot& slot, storage::Direction direction, std::span<storage::Place> places, storage::Done done) {
    storage::Pool::Request request;
    request.direction = direction;
    request.memory = slot.memory;
    request.bytes = sizes_[slot.group];
    request.places = places;
    request.deadline = ++started_;
    request.done = done;
    request.context = &slot;
    request.what = "optimizer state";
    try {
      pool_.start(request);
    } catch (...) {
      set(slot, Slot::Stage::idle);
      throw;
    }
  }

  static void loaded(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
    auto& slot = *static_cast<Slot*>(context);
    if (error) slot.bank->fail(error);
    slot.bank->set(slot, error ? Slot::Stage::idle : Slot::Stage::loaded);
  }

  static void written(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
    auto& slot = *static_cast<Slot*>(context);
    PathBank& self = *slot.bank;
    if (error) {
      self.fail(error);
    } else {
      try {
        self.take_over(slot);
      } catch (...) {
        self.fail(std::current_exception());
      }
    }
    self.set(slot, Slot::Stage::idle);
  }

  /// Makes the written places the group's, and frees its places of before.
  void take_over(Slot& slot) {
    auto& places = groups_[slot.group];
    const std::size_t count = group_pieces(sizes_[slot.group]);
    const std::vector<storage::Place> old = std::exchange(places, {slot.next.begin(), slot.next.begin() + count});
    if (!old.empty()) pool_.release(old);
  }

  void set(Slot& slot, Slot::Stage stage) noexcept {
    const std::lock_guard lock(mutex_);
    slot.stage = stage;
    ++changes_;
    changed_.notify_all();
  }

  void fail(const std::exception_ptr& error) noexcept {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    ++changes_;
    changed_.notify_all();
  }

  /// Until the slot holds its group; reads ahead as other slots become free.
  void wait_for(Slot& slot) {
    while (true) {
      read_ahead();
      std::unique_lock lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      if (slot.stage == Slot::Stage::loaded && slot.group == order_[at_] && next_ > at_) return;
      if (changes_ == seen_) changed_.wait(lock, [this] { return changes_ != seen_; });
      seen_ = changes_;
    }
  }

  /// Waits for what is under way, and throws what failed.
  void settle() {
    std::unique_lock lock(mutex_);
    for (Slot& slot : slots_) {
      changed_.wait(lock, [&] { return slot.stage == Slot::Stage::idle || slot.stage == Slot::Stage::loaded; });
      slot.stage = Slot::Stage::idle;
    }
    if (failure_) std::rethrow_exception(failure_);
  }

  const std::vector<Bytes> sizes_;
  memory::Arena arena_;
  std::vector<std::unique_ptr<storage::Path>> paths_;
  storage::Pool pool_;
  std::vector<std::vector<storage::Place>> groups_;  ///< where each lies; empty: never written
  std::vector<Slot> slots_;
  std::uint64_t started_ = 0;
  std::span<const std::size_t> order_;  ///< of the pass under way
  std::size_t at_ = 0;                  ///< whose turn it is in it
  std::size_t next_ = 0;                ///< the next to be read
  std::uint64_t seen_ = 0;              ///< of changes_

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t changes_ = 0;   ///< of stages and failure; guarded by mutex_
  std::exception_ptr failure_;  ///< the first of this pass; guarded by mutex_
};

}  // namespace

std::unique_ptr<GroupBank> make_memory_bank(const std::vector<Bytes>& sizes) {
  return std::make_unique<MemoryBank>(sizes);
}

std::unique_ptr<GroupBank> make_path_bank(const std::vector<Bytes>& sizes, Bytes staging,
                                          std::vector<std::unique_ptr<storage::Path>> paths) {
  return std::make_unique<PathBank>(sizes, staging, std::move(paths));
}

Bytes path_bank_bytes(const std::vector<Bytes>& sizes, Bytes staging) {
  std::size_t pieces = slot_count(largest_of(sizes), staging) * group_pieces(largest_of(sizes));
  for (const Bytes size : sizes) pieces += group_pieces(size);
  return pieces * storage::kExtentAlignment;
}

}  // namespace spillway::execute
