// The weights of a pass in the type that it multiplies in, where that is wider than the one they are kept and moved
// in.
#pragma once

#include <cstddef>

#include "spillway/execute/arenas.h"
#include "spillway/execute/arithmetic.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"

namespace spillway::execute {

class Widening {
 public:
  /// All references must outlive it.
  Widening(const plan::Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule, Arenas arenas,
           const Arithmetic& where);

  /// Where the pass finds its weights: the ones in memory, or, in the order of the stream, their fp32 copy, which is
  /// good until the next pass's. Null where it has none.
  [[nodiscard]] std::byte* weights(const plan::Visit& visit) const;

 private:
  void widen(const plan::Visit& visit, const std::byte* from, float* to) const;

  const plan::Schedule& schedule_;
  const state::Layout& layout_;
  const state::UpdateRule rule_;
  const Arenas arenas_;
  const Arithmetic where_;
};

}  // namespace spillway::execute
