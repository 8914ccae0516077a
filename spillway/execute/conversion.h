// The weights of a pass in what layers multiply in, where they are kept and moved in another type or form.
#pragma once

#include <cstddef>

#include "spillway/execute/arenas.h"
#include "spillway/plan/description.h"
#include "spillway/plan/schedule.h"
#include "spillway/sink/arithmetic.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

class Conversion {
 public:
  /// All references must outlive it.
  Conversion(const plan::Description& description, const state::Layout& layout, const plan::Schedule& schedule,
             Arenas arenas, const sink::Arithmetic& where);

  /// Where the pass finds its weights: the ones in memory, or, in the order of the stream, their copy in what layers
  /// multiply in (plan/conversion.h), which is good until the next pass's. Null where it has none.
  [[nodiscard]] std::byte* weights(const plan::Pass& pass) const;

 private:
  void convert(const plan::Pass& pass, const std::byte* from, std::byte* to) const;

  const plan::Description& description_;
  const state::Layout& layout_;
  const plan::Schedule& schedule_;
  const Arenas arenas_;
  const sink::Arithmetic where_;
};

}  // namespace spillway::execute
