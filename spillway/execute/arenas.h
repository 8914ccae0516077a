// The memory that a schedule's buffers lie in.
#pragma once

#include <array>
#include <cstddef>

#include "spillway/plan/schedule.h"

namespace spillway::execute {

class Arenas {
 public:
  Arenas(std::byte* host, std::byte* device = nullptr) {
    bases_[static_cast<std::size_t>(plan::TierKind::host)] = host;
    bases_[static_cast<std::size_t>(plan::TierKind::device)] = device;
  }

  /// Null where there is none.
  [[nodiscard]] std::byte* of(plan::TierKind tier) const noexcept { return bases_[static_cast<std::size_t>(tier)]; }
  [[nodiscard]] std::byte* at(const plan::Buffer& buffer) const noexcept { return of(buffer.tier) + buffer.offset; }
  /// Null for kNone.
  [[nodiscard]] std::byte* at(const plan::Schedule& schedule, plan::Index buffer) const noexcept {
    return buffer == plan::kNone ? nullptr : at(schedule.buffers[buffer]);
  }
  /// Null without a buffer.
  [[nodiscard]] std::byte* at(const plan::Schedule& schedule, const plan::Place& place) const noexcept {
    return place.any() ? at(schedule.buffers[place.buffer]) + place.offset : nullptr;
  }

 private:
  std::array<std::byte*, plan::kTiers.size()> bases_ = {};  ///< by kind of tier
};

}  // namespace spillway::execute
