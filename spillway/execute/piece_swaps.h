// Pieces that change places beside the steps. What they read and write is served after everything that a step waits
// for, and they take their new places between two steps.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "spillway/execute/asked_pieces.h"
#include "spillway/execute/hot_pieces.h"
#include "spillway/execute/run_plan.h"
#include "spillway/execute/tiers.h"
#include "spillway/memory/arena.h"
#include "spillway/plan/piece_staging.h"

namespace spillway::execute {

class PieceSwaps {
 public:
  /// All references must outlive it.
  PieceSwaps(const RunPlan& plan, Tiers& tiers, AskedPieces& asked);
  /// Waits for what is under way.
  ~PieceSwaps();
  PieceSwaps(const PieceSwaps&) = delete;
  PieceSwaps& operator=(const PieceSwaps&) = delete;

  /// True if a swap has all its bytes, so that apply() has something to do.
  [[nodiscard]] bool is_ready();
  /// Between steps, while no transfer of a step is under way: swaps that have all their bytes take place. Throws the
  /// error of a transfer.
  void apply();
  /// Between steps: chooses again if it is time, and starts as many swaps as the staging memory holds. Returns at once.
  void start();
  /// Waits for the swaps that are under way. apply() then finishes all of them.
  void wait();

 private:
  /// Two chunks of pieces.
  struct Pair {
    std::size_t one, other;
    std::size_t tensor;
    bool is_last;  ///< of its pieces
  };
  struct Transit {
    Transit(const Pair& of, std::span<std::byte> memory) : pair(of), swap(of.one, of.other, memory) {}
    Pair pair;
    WeightSwap swap;
  };

  void choose();
  [[nodiscard]] bool is_under_way(const Pair& pair) const;

  Tiers& tiers_;
  AskedPieces& asked_;
  HotPieces hot_;
  const plan::PieceStaging staging_;
  memory::Arena memory_;          ///< mapped with the first swap
  std::deque<Pair> chosen_;       ///< that have not begun, in order
  std::deque<Transit> transits_;  ///< under way, in order
  std::uint64_t begun_ = 0;
};

}  // namespace spillway::execute
