// Weights of two frozen chunks of one size, on their way to each other's place.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>

#include "spillway/storage/waiter.h"

namespace spillway::execute {

struct WeightSwap {
  struct Side {
    std::size_t chunk = 0;
    std::byte* memory = nullptr;              ///< its weights, if its new place needs them
    std::optional<storage::Waiter> transfer;  ///< into that memory, or out of it
  };

  /// `memory`: for both weights, aligned to 4096; it must outlive the transfers.
  WeightSwap(std::size_t one, std::size_t other, std::span<std::byte> memory) {
    sides[0].chunk = one;
    sides[0].memory = memory.data();
    sides[1].chunk = other;
    sides[1].memory = memory.data() + memory.size() / 2;
  }

  /// True if no transfer is under way.
  [[nodiscard]] bool has_ended() {
    for (auto& side : sides) {
      if (side.transfer && !side.transfer->wait_for(std::chrono::milliseconds{0})) return false;
    }
    return true;
  }

  std::array<Side, 2> sides;
};

}  // namespace spillway::execute
