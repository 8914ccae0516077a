#include "spillway/execute/piece_swaps.h"

#include <algorithm>
#include <exception>

namespace spillway::execute {

PieceSwaps::PieceSwaps(const RunPlan& plan, Tiers& tiers, AskedPieces& asked)
    : tiers_(tiers),
      asked_(asked),
      hot_(plan.description, plan.layout, plan.plan.placement, plan.piece_period),
      staging_(plan::piece_staging(plan.description, plan.layout)) {}

PieceSwaps::~PieceSwaps() {
  for (auto& it : transits_) {
    try {
      tiers_.wait(it.swap);
    } catch (...) {  // the run ends without this swap
      static_cast<void>(std::current_exception());
    }
  }
}

bool PieceSwaps::is_ready() {
  return !transits_.empty() && transits_.front().swap.has_ended();
}

void PieceSwaps::apply() {
  while (is_ready()) {
    auto& it = transits_.front();
    tiers_.end_swap(it.swap);
    if (it.pair.is_last) asked_.add_swap(it.pair.tensor);
    transits_.pop_front();
  }
}

void PieceSwaps::start() {
  if (transits_.empty() && hot_.is_due(asked_)) choose();
  while (!chosen_.empty() && transits_.size() < staging_.pairs && !is_under_way(chosen_.front())) {
    if (memory_.size() == 0) memory_ = memory::Arena(staging_.bytes());
    const auto slot = begun_++ % staging_.pairs;  // swaps end in the order in which they began
    transits_.emplace_back(chosen_.front(), memory_.span().subspan(slot * staging_.pair, staging_.pair));
    chosen_.pop_front();
    tiers_.start_swap(transits_.back().swap);
  }
}

void PieceSwaps::wait() {
  for (auto& it : transits_) tiers_.wait(it.swap);
}

/// Swaps that have not begun are chosen anew.
void PieceSwaps::choose() {
  chosen_.clear();
  for (const auto& swap : hot_.choose(asked_, tiers_.slots())) {
    for (plan::Index i = 0; i < swap.near.count; ++i) {
      chosen_.push_back({swap.near.first + i, swap.far.first + i, swap.tensor, i + 1 == swap.near.count});
    }
  }
}

/// A chunk that swaps twice waits until the first swap has ended.
bool PieceSwaps::is_under_way(const Pair& pair) const {
  return std::ranges::any_of(transits_, [&](const Transit& it) {
    const auto is_same = [&](std::size_t chunk) { return chunk == pair.one || chunk == pair.other; };
    return is_same(it.pair.one) || is_same(it.pair.other);
  });
}

}  // namespace spillway::execute
