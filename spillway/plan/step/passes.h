// The passes over a step's graph, in the order in which they run. Each adds its tasks, its buffers and what these wait
// for.
#pragma once

#include "spillway/plan/step/graph.h"

namespace spillway::plan::step {

/// The passes of blocks, each after the one before.
void add_block_passes(StepGraph& graph);
/// Updates, and states on their way to them and back.
void add_updates(StepGraph& graph);
/// Activations between layers.
void add_boundaries(StepGraph& graph);
/// Activations that autograd saves of layers, for their passes. A layer spills from the device that computes it to the
/// host and back, to a path and back, or in place on a tier of host memory.
void add_saved(StepGraph& graph);
/// Weights of layers and of the embedding, for updates and forward passes.
void add_forward(StepGraph& graph);
/// Weights of the head's two passes, its gradients, and where hidden states' gradients are summed.
void add_head(StepGraph& graph);
/// Weights of backward passes, gradients, and the rows of the embedding's.
void add_backward(StepGraph& graph);
/// One place for the converted weights of all passes, one after the other.
void add_converted(StepGraph& graph);
/// In a world of several processes: weights of passes that other processes have, and the order of the network.
void add_network(StepGraph& graph);

// These passes are for a device with memory of its own. Its block passes work on buffers there. A pass has ended for
// the host when it was issued, so no task of the host waits for one, only for a copy that waited for it there; and a
// pass waits for copies only, apart from the pass before.

/// Copies of weights to where passes read them. Chunks of a block lie side by side on both sides, so that a few of them
/// are one copy.
void add_device_weights(StepGraph& graph);
/// Snapshots of what lives there leave through the host, before the next updates change it.
void add_device_snapshots(StepGraph& graph);
/// Boundary activations that do not stay leave after forward and come back before backward; the first comes from the
/// embedding, whose passes are the host's.
void add_device_boundaries(StepGraph& graph);
/// Gradients leave as soon as they are complete, or stay until the update, and a durable step keeps a copy; that of
/// hidden states goes to the embedding.
void add_device_gradients(StepGraph& graph);
/// Chunks whose master and state lie on the host, and whose updates are the device's. The weight comes to where the
/// pass that follows the update reads it anyway, the state to staging of its own; both go back after the update. The
/// gradient has stayed there, or comes, too.
void add_device_updates(StepGraph& graph);
/// Reduced matrices whose gradients stay there: auxiliary fields are refitted on the host, from a gradient that the
/// pass has left there. The refit follows a copy that tells that the pass has come to its end, of the gradients that a
/// durable step logs or of one record, and another copy brings the new fields behind it.
void add_device_refits(StepGraph& graph);

}  // namespace spillway::plan::step
