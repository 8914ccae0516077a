#include "spillway/sys/lying_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace spillway::sys {

void Lies::add(const LieRule& rule) {
  const MutexLock lock(mutex_);
  rules_.push_back(rule);
}

std::uint64_t Lies::count() const {
  const MutexLock lock(mutex_);
  return lie_count_;
}

std::size_t Lies::late_writes() const {
  const MutexLock lock(mutex_);
  return late_writes_.size();
}

std::optional<LieRule> Lies::take_rule(const Piece& piece) {
  const MutexLock lock(mutex_);
  for (LieRule& rule : rules_) {
    if (rule.operation != piece.operation || piece.offset < rule.first || piece.offset >= rule.last) continue;
    if (rule.skip > 0) {
      --rule.skip;
      continue;
    }
    if (rule.times == 0) continue;
    --rule.times;
    ++lie_count_;
    return rule;
  }
  return std::nullopt;
}

void Lies::add_late_write(LateWrite write) {
  const MutexLock lock(mutex_);
  late_writes_.push_back(std::move(write));
}

std::vector<Lies::LateWrite> Lies::take_due(const void* ring) {
  const MutexLock lock(mutex_);
  std::vector<LateWrite> out;
  std::erase_if(late_writes_, [&](LateWrite& write) {
    if (write.ring != ring || write.patience-- > 0) return false;
    out.push_back(std::move(write));
    return true;
  });
  return out;
}

/// Late writes and older images go past the ring below, through files of their own that need no alignment.
class LyingRing final : public Ring {
 public:
  LyingRing(std::unique_ptr<Ring> inner, std::shared_ptr<Lies> lies, const File& file)
      : inner_(std::move(inner)), lies_(std::move(lies)), plain_file_(file.path(), {.write = true}) {}

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
  std::string register_memory(std::span<std::byte> memory) override { return inner_->register_memory(memory); }
  void flush() override { inner_->flush(); }
  void wake() noexcept override { inner_->wake(); }

  void submit(const Piece& piece) override {
    for (const Lies::LateWrite& write : lies_->take_due(this)) plain_file_.write(write.bytes, write.offset);
    const auto rule = piece.operation == Operation::sync ? std::nullopt : lies_->take_rule(piece);
    if (!rule) return inner_->submit(piece);
    switch (rule->lie) {
      case Lie::lost:
        break;
      case Lie::misdirected: {
        Piece elsewhere = piece;
        elsewhere.offset += rule->distance;
        return inner_->submit(elsewhere);
      }
      case Lie::late:
        lies_->add_late_write({this, piece.offset, {piece.memory, piece.memory + piece.bytes}, rule->distance});
        break;
      case Lie::stale:
        File(rule->image).read({piece.memory, piece.bytes}, piece.offset);
        break;
    }
    ended_.push_back({piece.tag, static_cast<std::int32_t>(piece.bytes)});
  }

  std::size_t wait(std::span<Completion> out) override {
    if (ended_.empty()) return inner_->wait(out);
    inner_->flush();
    const std::size_t count = std::min(out.size(), ended_.size());
    std::copy_n(ended_.begin(), count, out.begin());
    ended_.erase(ended_.begin(), ended_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }

 private:
  std::unique_ptr<Ring> inner_;
  std::shared_ptr<Lies> lies_;
  const File plain_file_;
  std::vector<Completion> ended_;  ///< not yet handed out
};

RingFactory lying(RingFactory inner, std::shared_ptr<Lies> lies) {
  return [inner = std::move(inner), lies = std::move(lies)](const File& file, unsigned depth) {
    return std::make_unique<LyingRing>(inner(file, depth), lies, file);
  };
}

}  // namespace spillway::sys
