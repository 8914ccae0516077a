// The weights of a pass in what layers multiply in, where they are kept and moved in another type or form.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spillway/execute/arenas.h"
#include "spillway/execute/weight_slots.h"
#include "spillway/plan/conversion.h"
#include "spillway/plan/description.h"
#include "spillway/plan/schedule.h"
#include "spillway/sink/arithmetic.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

class Conversion {
 public:
  /// All references must outlive it.
  Conversion(const plan::Description& description, const state::Layout& layout, const plan::Schedule& schedule,
             Arenas arenas, const sink::Arithmetic& where, const WeightSlots& slots);

  /// Weights for a pass: the ones in memory, or, in the order of the stream, their copy in the type that layers
  /// multiply in (plan/conversion.h). The copy is valid until the next pass's. Null if the pass has none.
  [[nodiscard]] std::byte* weights(const plan::Pass& pass) const;

  /// Converts `count` pieces of a tensor of the pass's block, from number `first` on, to the pieces' place in that copy
  /// (plan::weight_first), in the order of the stream. Throws Error(bad_input) as plan::piece_spans() does, and where
  /// the tensor is another block's.
  void convert_pieces(const plan::Pass& pass, std::size_t tensor, std::uint64_t first, std::uint64_t count) const;

 private:
  /// Calls body(chunk, weights) for each chunk of a pass, in the order of their slots.
  template <class Body>
  void each_weight(const plan::Pass& pass, Body body) const {
    plan::each_weight(pass, layout_, description_.rule(), &plan::PassWeights::here,
                      [&](plan::Index slot, plan::Place at) {
                        body(layout_.chunks()[slots_.chunk_in(slot)], arenas_.at(schedule_, at));
                      });
  }
  /// A range of the chunk at `from`; gives the end of what it has made at `to`.
  std::byte* convert(const state::Chunk& chunk, plan::ValueRange range, const std::byte* from, std::byte* to) const;

  const plan::Description& description_;
  const state::Layout& layout_;
  const plan::Schedule& schedule_;
  const Arenas arenas_;
  const sink::Arithmetic where_;
  const WeightSlots& slots_;
};

}  // namespace spillway::execute
