#include "spillway/sys/faulty_ring.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::sys {

void Faults::fail(Operation operation, Bytes offset, int errno_value, unsigned times) {
  const MutexLock lock(mutex_);
  rules_.push_back({operation, offset, errno_value, 0, times});
}

void Faults::shorten(Operation operation, Bytes offset, std::uint32_t bytes, unsigned times) {
  const MutexLock lock(mutex_);
  rules_.push_back({operation, offset, 0, bytes, times});
}

void Faults::refuse_registration(std::string reason) {
  const MutexLock lock(mutex_);
  registration_refusal_ = std::move(reason);
}

void Faults::break_ring() {
  const MutexLock lock(mutex_);
  broken_ = true;
  if (wake_) wake_();
}

void Faults::hold() {
  const MutexLock lock(mutex_);
  held_ = true;
  passes_ = 0;
}

void Faults::release(Order order) {
  const MutexLock lock(mutex_);
  held_ = false;
  if (order == Order::reversed) std::reverse(ended_.begin(), ended_.end());
  if (wake_) wake_();
}

void Faults::pass(std::size_t count) {
  const MutexLock lock(mutex_);
  passes_ += count;
  if (wake_) wake_();
}

void Faults::await_submitted(std::size_t count) {
  MutexLock lock(mutex_);
  while (submitted_.size() < count) changed_.wait(lock);
}

void Faults::await_held(std::size_t count) {
  MutexLock lock(mutex_);
  while (ended_.size() < count) changed_.wait(lock);
}

std::vector<Piece> Faults::submitted() const {
  const MutexLock lock(mutex_);
  return submitted_;
}

std::optional<Faults::Rule> Faults::take_rule(const Piece& piece) {
  const auto rule = std::find_if(rules_.begin(), rules_.end(), [&](const Rule& candidate) {
    const bool there = candidate.offset == piece.offset || piece.operation == Operation::sync;
    return candidate.operation == piece.operation && there && candidate.times > 0;
  });
  if (rule == rules_.end()) return std::nullopt;
  --rule->times;
  return *rule;
}

class FaultyRing final : public Ring {
 public:
  FaultyRing(std::unique_ptr<Ring> inner, std::shared_ptr<Faults> faults, unsigned depth)
      : inner_(std::move(inner)), faults_(std::move(faults)), batch_(depth) {
    const MutexLock lock(faults_->mutex_);
    if (faults_->wake_)
      throw Error(ErrorCode::internal, "these faults are another ring's: it would get our completions");
    faults_->wake_ = [this] { inner_->wake(); };
    faults_->ended_.reserve(2 * std::size_t{depth});
  }

  ~FaultyRing() override {
    const MutexLock lock(faults_->mutex_);
    faults_->wake_ = nullptr;
  }

  FaultyRing(const FaultyRing&) = delete;
  FaultyRing& operator=(const FaultyRing&) = delete;

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }

  std::string register_memory(std::span<std::byte> memory) override {
    {
      const MutexLock lock(faults_->mutex_);
      if (!faults_->registration_refusal_.empty()) return faults_->registration_refusal_;
    }
    return inner_->register_memory(memory);
  }

  void submit(const Piece& piece) override {
    const MutexLock lock(faults_->mutex_);
    faults_->submitted_.push_back(piece);
    const auto rule = faults_->take_rule(piece);
    if (rule && (rule->errno_value != 0 || rule->bytes == 0)) {
      faults_->ended_.push_back({piece.tag, -rule->errno_value});
    } else {
      Piece spoilt = piece;
      if (rule) spoilt.bytes = std::min(spoilt.bytes, rule->bytes);
      inner_->submit(spoilt);
    }
    faults_->changed_.notify_all();
  }

  void flush() override { inner_->flush(); }

  std::size_t wait(std::span<Completion> out) override {
    if (const std::size_t ready = hand_out(out); ready > 0) return ready;
    const std::size_t count = inner_->wait(batch_);
    {
      const MutexLock lock(faults_->mutex_);
      faults_->ended_.insert(faults_->ended_.end(), batch_.begin(),
                             batch_.begin() + static_cast<std::ptrdiff_t>(count));
      faults_->changed_.notify_all();
    }
    return hand_out(out);
  }

  void wake() noexcept override { inner_->wake(); }

 private:
  std::size_t hand_out(std::span<Completion> out) {
    const MutexLock lock(faults_->mutex_);
    if (faults_->broken_) throw Error(ErrorCode::io, "the ring was broken by a test", EBADF);
    std::size_t count = std::min(out.size(), faults_->ended_.size());
    if (faults_->held_) {
      count = std::min(count, faults_->passes_);
      faults_->passes_ -= count;
    }
    const auto last = faults_->ended_.begin() + static_cast<std::ptrdiff_t>(count);
    std::copy(faults_->ended_.begin(), last, out.begin());
    faults_->ended_.erase(faults_->ended_.begin(), last);
    return count;
  }

  std::unique_ptr<Ring> inner_;
  std::shared_ptr<Faults> faults_;
  std::vector<Completion> batch_;
};

RingFactory faulty(RingFactory inner, std::shared_ptr<Faults> faults) {
  return [inner = std::move(inner), faults = std::move(faults)](const File& file, unsigned depth) {
    return std::make_unique<FaultyRing>(inner(file, depth), faults, depth);
  };
}

}  // namespace spillway::sys
