// The lanes to and from a device with memory of its own, added to a schedule that was made for visits in host memory.
//
// Visits then work on buffers of the device. Weights of blocks that are not resident there are copied into a window;
// gradients leave it as soon as they are complete; border activations that do not stay leave after forward and come
// back before backward. The embedding is gathered, and its gradient scattered, on the host, so that of its table only
// the rows of the step's tokens cross the link. Chunks of a block lie side by side on both sides, so that a few of them
// are one copy.
//
// Chunks that live there have no copies but what a durable step keeps: their gradients, and an image now and then,
// leave through staging on the host. Their updates are tasks of a lane of the device's own.
//
// A visit has ended for the host when it was issued. So no task of the host waits for a visit of the device, only for a
// copy that waited for it there; and a visit waits for copies only, apart from the visit before.
#pragma once

#include "spillway/plan/schedule.h"

namespace spillway::plan {

/// Of `lookahead`: `device`, visits before the one that needs it that a copy may begin, and after the one that made it
/// that it may still be on its way, 0 = no overlap; and `join`.
void add_device(Schedule& schedule, const Description& description, const state::Layout& layout,
                const DeviceResidency& residency, const Lookahead& lookahead);

}  // namespace spillway::plan
