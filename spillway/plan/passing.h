// Chunks whose master and state lie on the host, in DRAM or on paths, and whose updates are a device's.
//
// The weight comes to where the visit that follows the update reads it anyway, the state to staging of its own, some
// chunks ahead; both go back after the update. The gradient has stayed there, or comes, too. On the host nothing else
// changes: what read before an update now reads before a copy to the device, and what wrote after it writes after the
// copy back.
#pragma once

#include "spillway/plan/schedule.h"

namespace spillway::plan {

/// For a schedule that has the other copies. Of `lookahead`: `device`, chunks before their update that states come, and
/// after it that they may still be on their way back; and `join`, for gradients that come.
void let_pass(Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule,
              const DeviceResidency& residency, const Lookahead& lookahead);

}  // namespace spillway::plan
