#include "spillway/sys/power_cut.h"

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::sys {
namespace {

constexpr Bytes kSector = 512;
/// A sync ends after at most this many other completions.
constexpr std::uint64_t kLongestSync = 4;

/// Which sectors of one write are there. Whole writes that are there or not are as likely as torn ones: with a coin for
/// each sector alone a large write would never be whole.
class Tear {
 public:
  Tear(std::mt19937_64& random, Bytes sectors)
      : random_(random), shape_(random() % 5), edge_(random() % (sectors + 1)) {}

  [[nodiscard]] bool spares(Bytes sector) {
    switch (shape_) {
      case 0:
        return false;
      case 1:
        return true;
      case 2:
        return sector < edge_;
      case 3:
        return sector >= edge_;
      default:
        return random_() % 2 == 0;
    }
  }

 private:
  std::mt19937_64& random_;
  std::uint64_t shape_;
  Bytes edge_;
};

/// Lays writes over a file, sector by sector; of several to one sector each is as likely to stay.
class Wreck {
 public:
  Wreck(SparseBytes& file, std::uint64_t seed) : file_(file), random_(seed) {}

  void add(std::span<const std::byte> bytes, Bytes offset) {
    const Bytes first = offset / kSector;
    const Bytes last = ceil_div(offset + bytes.size(), kSector);
    if (contenders_.size() < last) contenders_.resize(last);
    Tear tear(random_, last - first);
    for (Bytes sector = first; sector < last; ++sector) {
      if (!tear.spares(sector - first) || random_() % ++contenders_[sector] != 0) continue;
      const Bytes begin = std::max(sector * kSector, offset);
      const Bytes end = std::min((sector + 1) * kSector, offset + bytes.size());
      file_.write(bytes.subspan(begin - offset, end - begin), begin);
    }
  }

 private:
  SparseBytes& file_;
  std::mt19937_64 random_;
  std::vector<std::uint32_t> contenders_;  ///< by sector: writes to it that could be the one that is there
};

}  // namespace

void PowerCut::cut_after(std::uint64_t events) {
  const MutexLock lock(mutex_);
  last_ = events;
}

void PowerCut::lie_from(std::uint64_t sync, std::filesystem::path file) {
  const MutexLock lock(mutex_);
  first_lie_ = sync;
  liar_ = std::move(file);
}

std::uint64_t PowerCut::false_syncs() const {
  const MutexLock lock(mutex_);
  return false_syncs_;
}

bool PowerCut::lies_about(const std::filesystem::path& file) {
  if (!liar_.empty() && file != liar_) return false;
  if (syncs_++ < first_lie_) return false;
  ++false_syncs_;
  return true;
}

std::uint64_t PowerCut::events() const {
  const MutexLock lock(mutex_);
  return events_;
}

bool PowerCut::is_cut() const {
  const MutexLock lock(mutex_);
  return events_ >= last_;
}

SparseBytes PowerCut::image(const std::filesystem::path& file, std::uint64_t seed) const {
  const MutexLock lock(mutex_);
  const auto found = volumes_.find(file);
  if (found == volumes_.end()) throw Error(ErrorCode::internal, text("no ring was made for ", file.string()));
  const Volume& volume = found->second;
  SparseBytes image = volume.durable;
  Wreck wreck(image, seed + volume.number * 0x9E3779B97F4A7C15ULL);
  for (const Write& write : volume.writes) {
    if (seed == kEverything) {
      image.write(write.bytes, write.offset);
    } else if (seed != kNothing) {
      wreck.add(write.bytes, write.offset);
    }
  }
  return image;
}

PowerCut::Volume* PowerCut::watch(const File& file) {
  SparseBytes durable{File(file.path())};
  const MutexLock lock(mutex_);
  const auto [entry, made] = volumes_.try_emplace(file.path());
  if (made) entry->second.number = volumes_.size() - 1;
  entry->second.durable = std::move(durable);
  entry->second.writes.clear();
  return &entry->second;
}

bool PowerCut::count_event() {
  if (events_ >= last_) return false;
  ++events_;
  return true;
}

PowerCut::Ids PowerCut::Volume::completed() const {
  Ids ids;
  for (const Write& write : writes) {
    if (write.completed) ids.push_back(write.id);
  }
  return ids;
}

void PowerCut::Volume::complete(std::uint64_t id, std::int32_t result) {
  Write& write = *std::ranges::lower_bound(writes, id, {}, &Write::id);
  write.completed = true;
  write.moved = std::min<std::size_t>(write.bytes.size(), static_cast<std::size_t>(std::max(result, 0)));
}

/// What a covered write did not move is not there for good. Another sync may have covered some of them already.
void PowerCut::Volume::make_durable(const Ids& ids) {
  const auto covered = [&](const Write& write) { return std::ranges::binary_search(ids, write.id); };
  for (const Write& write : writes) {
    if (covered(write)) durable.write(std::span(write.bytes).first(write.moved), write.offset);
  }
  std::erase_if(writes, covered);
}

class PowerCutRing final : public Ring {
 public:
  PowerCutRing(std::unique_ptr<Ring> inner, std::shared_ptr<PowerCut> power, const File& file, unsigned depth)
      : inner_(std::move(inner)),
        power_(std::move(power)),
        volume_(power_->watch(file)),
        path_(file.path()),
        pending_(depth),
        batch_(depth) {
    for (std::uint64_t slot = 0; slot < depth; ++slot) free_.push_back(slot);
  }

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
  std::string register_memory(std::span<std::byte> memory) override { return inner_->register_memory(memory); }
  void flush() override { inner_->flush(); }
  void wake() noexcept override { inner_->wake(); }

  void submit(const Piece& piece) override {
    const MutexLock lock(power_->mutex_);
    if (!power_->count_event()) {
      dead_.push_back({piece.tag, -EIO});
    } else if (piece.operation == Operation::sync) {
      const bool lies = power_->lies_about(path_);
      syncs_.push_back(
          {piece.tag, lies ? PowerCut::Ids() : volume_->completed(), power_->events_ * 7 % (kLongestSync + 1)});
    } else {
      pass_on(piece);
    }
  }

  std::size_t wait(std::span<Completion> out) override {
    inner_->flush();
    if (const std::size_t count = end_without_inner(out); count > 0) return count;
    const std::size_t count = inner_->wait(std::span(batch_).first(std::min(out.size(), batch_.size())));
    const MutexLock lock(power_->mutex_);
    for (std::size_t i = 0; i < count; ++i) out[i] = end_transfer(batch_[i]);
    return count;
  }

 private:
  struct Transfer {
    std::uint64_t tag = 0;
    bool write = false;
    std::uint64_t id = 0;  ///< of a write
  };
  struct Sync {
    std::uint64_t tag = 0;
    PowerCut::Ids covered;
    std::uint64_t patience = 0;  ///< completions that come before its own
  };

  void pass_on(const Piece& piece) SPILLWAY_REQUIRES(power_->mutex_) {
    const std::uint64_t slot = free_.back();
    free_.pop_back();
    pending_[slot] = {piece.tag, piece.operation == Operation::write, 0};
    if (pending_[slot].write) {
      pending_[slot].id = power_->writes_++;
      volume_->writes.push_back({pending_[slot].id, piece.offset, {piece.memory, piece.memory + piece.bytes}});
    }
    Piece passed = piece;
    passed.tag = slot;
    inner_->submit(passed);
  }

  Completion end_transfer(const Completion& inner) SPILLWAY_REQUIRES(power_->mutex_) {
    const Transfer transfer = pending_[inner.tag];
    free_.push_back(inner.tag);
    if (!power_->count_event()) return {transfer.tag, -EIO};
    if (transfer.write) volume_->complete(transfer.id, inner.result);
    for (Sync& sync : syncs_) sync.patience -= std::min<std::uint64_t>(sync.patience, 1);
    return {transfer.tag, inner.result};
  }

  /// Whatever was refused by the dead machine, and syncs that are due, or that nothing else is left to wait for.
  std::size_t end_without_inner(std::span<Completion> out) {
    const MutexLock lock(power_->mutex_);
    std::size_t count = 0;
    for (; count < out.size() && !dead_.empty(); dead_.pop_back()) out[count++] = dead_.back();
    const bool alone = free_.size() == pending_.size();
    for (auto sync = syncs_.begin(); sync != syncs_.end() && count < out.size();) {
      if (!alone && sync->patience > 0 && power_->events_ < power_->last_) {
        ++sync;
        continue;
      }
      out[count++] = end_sync(*sync);
      sync = syncs_.erase(sync);
    }
    return count;
  }

  Completion end_sync(const Sync& sync) SPILLWAY_REQUIRES(power_->mutex_) {
    if (!power_->count_event()) return {sync.tag, -EIO};
    volume_->make_durable(sync.covered);
    return {sync.tag, 0};
  }

  std::unique_ptr<Ring> inner_;
  std::shared_ptr<PowerCut> power_;
  PowerCut::Volume* volume_;
  const std::filesystem::path path_;
  std::vector<Transfer> pending_;    ///< by slot: what the inner ring has
  std::vector<std::uint64_t> free_;  ///< slots
  std::vector<Sync> syncs_;
  std::vector<Completion> dead_;  ///< ended without power, not yet handed out
  std::vector<Completion> batch_;
};

RingFactory power_cut(RingFactory inner, std::shared_ptr<PowerCut> power) {
  return [inner = std::move(inner), power = std::move(power)](const File& file, unsigned depth) {
    return std::make_unique<PowerCutRing>(inner(file, depth), power, file, depth);
  };
}

}  // namespace spillway::sys
