// A ring that kills its process at a named point of the way from a step's gradients to its durable commit.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "spillway/execute/journal_objects.h"
#include "spillway/storage/superblock.h"
#include "spillway/sys/ring.h"

namespace spillway::test {

/// What a piece is to the journal.
enum class Point : std::uint8_t { data, record, commit, flush };
inline constexpr std::array kPoints = {Point::data, Point::record, Point::commit, Point::flush};

[[nodiscard]] inline std::string name_of(Point point) {
  static constexpr const char* kNames[] = {"data", "record", "commit", "flush"};
  return kNames[static_cast<std::size_t>(point)];
}

/// Tells points apart by where they lie in the volume.
class Points {
 public:
  Points(const plan::Description& description, const state::Layout& layout, const std::string& run, std::size_t paths)
      : layout_(execute::journal_spec(description, layout, plan::Durability::step, run, paths)) {}

  [[nodiscard]] Point of(const sys::Piece& piece) const {
    if (piece.operation == sys::Operation::sync) return Point::flush;
    if (piece.offset >= storage::kSuperblockExtent + layout_.bytes()) return Point::data;
    const auto at = piece.offset - storage::kSuperblockExtent;
    for (std::uint32_t copy = 0; copy < journal::kCopies; ++copy) {
      const auto first = layout_.commit(copy, 0);
      if (at >= first && at < first + layout_.commit_slots() * layout_.commit_bytes()) return Point::commit;
    }
    return Point::record;
  }

 private:
  journal::MetadataLayout layout_;
};

/// When to die: at the `count`-th write or flush of that kind, before it begins or after it has ended. Count 0: never.
struct Death {
  Point point = Point::data;
  bool after = false;
  std::uint64_t count = 0;
};

/// What all rings of a process have seen.
struct Fate {
  Points points;
  Death death;
  std::array<std::atomic<std::uint64_t>, 8> seen{};  ///< by point, before and after
};

class KillingRing : public sys::Ring {
 public:
  KillingRing(std::unique_ptr<sys::Ring> inner, std::shared_ptr<Fate> fate)
      : inner_(std::move(inner)), fate_(std::move(fate)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
  std::string register_memory(std::span<std::byte> memory) override { return inner_->register_memory(memory); }
  void submit(const sys::Piece& piece) override {
    if (piece.operation != sys::Operation::read) {
      pass(fate_->points.of(piece), false);
      open_[piece.tag] = fate_->points.of(piece);
    }
    inner_->submit(piece);
  }
  void flush() override { inner_->flush(); }
  std::size_t wait(std::span<sys::Completion> out) override {
    const auto count = inner_->wait(out);
    for (const auto& completion : out.first(count)) {
      const auto at = open_.find(completion.tag);
      if (at == open_.end()) continue;
      pass(at->second, true);
      open_.erase(at);
    }
    return count;
  }
  void wake() noexcept override { inner_->wake(); }

 private:
  void pass(Point point, bool after) {
    const auto seen = ++fate_->seen[static_cast<std::size_t>(point) * 2 + (after ? 1 : 0)];
    const auto& death = fate_->death;
    if (death.count == seen && death.point == point && death.after == after) std::raise(SIGKILL);
  }

  std::unique_ptr<sys::Ring> inner_;
  std::shared_ptr<Fate> fate_;
  std::map<std::uint64_t, Point> open_;
};

[[nodiscard]] inline sys::RingFactory killing(sys::RingFactory inner, std::shared_ptr<Fate> fate) {
  return [inner = std::move(inner), fate = std::move(fate)](const sys::File& file, unsigned depth) {
    return std::make_unique<KillingRing>(inner(file, depth), fate);
  };
}

}  // namespace spillway::test
