// Updates of chunks that live on a device or pass through it, and changes of copies there: work of the device, on a
// stream of their own.
#pragma once

#include <memory>

#include "spillway/device/device.h"
#include "spillway/execute/arenas.h"
#include "spillway/execute/chunk_update.h"
#include "spillway/kernels/update.h"
#include "spillway/plan/schedule.h"
#include "spillway/sink/gradient_sink.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"

namespace spillway::execute {

class DeviceUpdates {
 public:
  /// Updates by a rule that plan::no_device_update() has nothing against. All references must outlive it.
  DeviceUpdates(const plan::Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule,
                Arenas arenas, const sink::GradientSink& sink);

  /// Sets the step that the pending updates apply; called while no update runs.
  void set(const optim::Step& step) noexcept { step_ = element_step(rule_, step); }
  /// Gives the update of a chunk to the stream, or the change of its copy. Tensors that do not decay ignore the step's
  /// `weight_decay`.
  void run(device::Device& device, device::Stream stream, plan::Index chunk);

 private:
  void apply_change(device::Device& device, device::Stream stream, plan::Index chunk);

  const plan::Schedule& schedule_;
  const state::Layout& layout_;
  const state::UpdateRule rule_;
  const Arenas arenas_;
  const std::unique_ptr<sink::DeviceUpdate> reduced_;
  kernels::UpdateStep step_;
};

}  // namespace spillway::execute
