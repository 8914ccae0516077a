// Functions that make a step's graph, in the order in which they run. Each adds its tasks, its buffers and what these
// wait for, and follows the uses of its objects (uses.h) hop by hop (hops.h).
//
// On a device with memory of its own a pass has ended for the host when it was issued, so no task of the host waits for
// one, only for a copy that waited for it there; and a pass waits for copies only, apart from the pass before.
#pragma once

#include "spillway/plan/step/graph.h"

namespace spillway::plan::step {

/// The passes of blocks, each after the one before.
void add_block_passes(StepGraph& graph);
/// Updates, and states on their way to them and back.
void add_updates(StepGraph& graph);
/// Operands that passes share: sums of a head, and the one place of converted weights.
void add_operands(StepGraph& graph);
/// Tensors that autograd saves of layers that spill.
void add_saved(StepGraph& graph);
/// Activations between passes: inputs of layers, and gradients of hidden states.
void add_activations(StepGraph& graph);
/// Weights for updates and for the passes that read them. Chunks of a block lie side by side on the host and on a
/// device, so that a few of them are one copy.
void add_weights(StepGraph& graph);
/// Gradients from the passes that make them to their homes. They leave a device as soon as they are complete, or stay
/// until the update, and a durable step keeps a copy. Updates follow that do not wait for the end of the step.
void add_gradients(StepGraph& graph);
/// Background refits of reduced matrices, between the gradient that a pass has left and its readers.
void add_refits(StepGraph& graph);
/// The embedding's gradient: the rows of the step's tokens.
void add_rows(StepGraph& graph);
/// The one order of the network.
void order_network(StepGraph& graph);
/// Snapshots of what lives on a device leave through the host, before the next updates change it.
void add_snapshot_hops(StepGraph& graph);
/// Chunks whose master and state lie on the host, and whose updates are the device's. The weight comes to where the
/// pass that follows the update reads it anyway, and goes back. The gradient has stayed there, or comes, too.
void add_update_hops(StepGraph& graph);
/// Changes of reduced matrices that the host has updated, to the copies on a device that take them: the change goes up
/// behind the update, and the device adds it before the first pass that reads the copy.
void add_changes(StepGraph& graph);
/// Reduced matrices whose gradients stay on a device: auxiliary fields are refitted on the host, from a gradient that
/// the pass has left there. The refit follows a copy that tells that the pass has come to its end, of the gradients
/// that a durable step logs or of one record, and another copy brings the new fields behind it.
void add_refit_hops(StepGraph& graph);

}  // namespace spillway::plan::step
