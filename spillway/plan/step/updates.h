// Parts of a chunk around its update.
#pragma once

#include "spillway/plan/step/graph.h"
#include "spillway/plan/step/uses.h"

namespace spillway::plan::step {

/// A part that the update needs: its place there, and the events of its coming and of the update's end with it.
struct UpdatePart {
  ObjectKind kind;
  Place GroupPlaces::*place;
  ChunkEvent come, done;
};
inline constexpr UpdatePart kWeightPart{ObjectKind::weight, &GroupPlaces::weight, ChunkEvent::weight_read,
                                        ChunkEvent::weight_updated};
inline constexpr UpdatePart kStatePart{ObjectKind::state, &GroupPlaces::state, ChunkEvent::state_read,
                                       ChunkEvent::state_updated};
inline constexpr UpdatePart kGradientPart{ObjectKind::gradient, &GroupPlaces::grad, ChunkEvent::gradient_ready,
                                          ChunkEvent::gradient_used};

/// Gradients that a pass makes, from a path to the host around their updates.
void read_gradients(StepGraph& graph, const GradientUse& use);

/// Room for the gradients that updates make.
void add_made_gradients(StepGraph& graph);

}  // namespace spillway::plan::step
