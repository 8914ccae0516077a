// A ring whose drive goes out, which is interrupted, or which kills its process.
#pragma once

#include <atomic>
#include <cerrno>
#include <csignal>
#include <memory>
#include <vector>

#include "tests/stress/scenario.h"

namespace spillway::stress {

/// What all rings of a process have seen.
struct Seen {
  std::atomic<std::uint64_t> events{0};
  std::atomic<std::uint64_t> of_outage{0};  ///< operations that the outage counts
};

class SpoiledRing : public sys::Ring {
 public:
  SpoiledRing(std::unique_ptr<sys::Ring> inner, const Life& life, std::size_t path, std::shared_ptr<Seen> seen)
      : inner_(std::move(inner)), life_(life), path_(path), seen_(std::move(seen)), random_(life.seed + path) {}

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
  std::string register_memory(std::span<std::byte> memory) override { return inner_->register_memory(memory); }
  void flush() override { inner_->flush(); }
  void wake() noexcept override { inner_->wake(); }

  void submit(const sys::Piece& piece) override {
    count();
    if (is_out(piece)) {
      ended_.push_back({piece.tag, -life_.outage->error});
    } else if (piece.operation != sys::Operation::sync && spoils()) {
      spoil(piece);
    } else {
      inner_->submit(piece);
    }
  }

  std::size_t wait(std::span<sys::Completion> out) override {
    if (ended_.empty()) {
      const auto moved = inner_->wait(out);
      if (moved > 0) count();
      return moved;
    }
    const auto moved = std::min(out.size(), ended_.size());
    std::copy_n(ended_.begin(), moved, out.begin());
    ended_.erase(ended_.begin(), ended_.begin() + static_cast<std::ptrdiff_t>(moved));
    return moved;
  }

 private:
  void count() {
    if (++seen_->events == life_.event && life_.ending == Ending::killed) std::raise(SIGKILL);
  }
  bool is_out(const sys::Piece& piece) {
    const auto& outage = life_.outage;
    if (!outage || outage->path != path_ || outage->operation != piece.operation) return false;
    return seen_->of_outage++ >= outage->from;
  }
  bool spoils() { return life_.interrupt_one_in > 0 && one_in(random_, life_.interrupt_one_in); }
  void spoil(const sys::Piece& piece) {
    if (one_in(random_, 2) || piece.bytes <= 4096) {
      ended_.push_back({piece.tag, one_in(random_, 2) ? -EINTR : -EAGAIN});
      return;
    }
    auto shorter = piece;
    shorter.bytes = static_cast<std::uint32_t>(4096 * (1 + random_() % (piece.bytes / 4096)));
    inner_->submit(shorter);
  }

  std::unique_ptr<sys::Ring> inner_;
  const Life life_;
  const std::size_t path_;
  std::shared_ptr<Seen> seen_;
  Random random_;
  std::vector<sys::Completion> ended_;
};

/// Where the parts of a volume begin and end in its file.
struct PartBounds {
  Bytes records = 0, data = 0;  ///< of the first of two copies, and of what comes behind both
};

/// Rings of drives that lie about a part of their volumes, which have directories with their numbers as names.
[[nodiscard]] inline sys::RingFactory deceived(sys::RingFactory inner, const Life& life, const PartBounds& bounds,
                                               const std::shared_ptr<sys::Lies>& lies) {
  if (!life.deceit) return inner;
  const auto& deceit = *life.deceit;
  sys::LieRule rule{.lie = deceit.lie, .operation = deceit.operation, .skip = deceit.skip, .times = deceit.times};
  rule.distance = deceit.distance * (deceit.lie == sys::Lie::misdirected ? 4096 : 1);
  if (deceit.part == Part::commits) rule.last = bounds.records;
  if (deceit.part == Part::records) rule.first = bounds.records;
  if (deceit.part == Part::records || deceit.part == Part::metadata) rule.last = bounds.data;
  if (deceit.part == Part::data) rule.first = bounds.data;
  lies->add(rule);
  return [inner, lying = sys::lying(inner, lies), path = deceit.path](const sys::File& file, unsigned depth) {
    const auto number = std::stoul(file.path().parent_path().filename().string());
    return path.value_or(number) == number ? lying(file, depth) : inner(file, depth);
  };
}

/// Rings of paths that lie in directories with their numbers as names.
[[nodiscard]] inline sys::RingFactory spoiled(sys::RingFactory inner, const Life& life) {
  return [inner = std::move(inner), life, seen = std::make_shared<Seen>()](const sys::File& file, unsigned depth) {
    const auto path = std::stoul(file.path().parent_path().filename().string());
    return std::make_unique<SpoiledRing>(inner(file, depth), life, path, seen);
  };
}

}  // namespace spillway::stress
