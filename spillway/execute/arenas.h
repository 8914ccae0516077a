// The memory that a schedule's buffers lie in.
#pragma once

#include <cstddef>

#include "spillway/plan/schedule.h"

namespace spillway::execute {

struct Arenas {
  std::byte* host = nullptr;
  std::byte* device = nullptr;  ///< null: every buffer is the host's

  Arenas(std::byte* host_arena, std::byte* device_arena = nullptr) : host(host_arena), device(device_arena) {}

  [[nodiscard]] std::byte* at(const plan::Buffer& buffer) const noexcept {
    return (buffer.tier == plan::TierKind::device ? device : host) + buffer.offset;
  }
  /// Null for kNone.
  [[nodiscard]] std::byte* at(const plan::Schedule& schedule, plan::Index buffer) const noexcept {
    return buffer == plan::kNone ? nullptr : at(schedule.buffers[buffer]);
  }
  /// Null without a buffer.
  [[nodiscard]] std::byte* at(const plan::Schedule& schedule, const plan::Place& place) const noexcept {
    return place.any() ? at(schedule.buffers[place.buffer]) + place.offset : nullptr;
  }
};

}  // namespace spillway::execute
