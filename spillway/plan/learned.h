// Matrices that learn in subspaces and that a device updates.
//
// Their gradients stay there, or come there for the update; projectors are learned on the host, from a gradient that
// the visit has left there. So where a gradient stays, what was learned goes after it: the fit follows a copy from the
// device that tells that the visit has come to its end, of the gradients that a durable step logs or of one record, and
// a copy to the device brings the new pair behind it.
#pragma once

#include "spillway/plan/schedule.h"

namespace spillway::plan {

/// For a schedule that has all other copies. Without such chunks it stays as it is.
void bring_learned(Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule,
                   const DeviceResidency& residency);

}  // namespace spillway::plan
