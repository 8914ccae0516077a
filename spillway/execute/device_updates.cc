#include "spillway/execute/device_updates.h"

#include <algorithm>

namespace spillway::execute {
namespace {

/// The buffer that all reduced matrices share; no place: a device updates none.
plan::Place change_of(const plan::Schedule& schedule) {
  const auto it = std::ranges::find_if(schedule.groups, &plan::Place::any, &plan::GroupPlaces::change);
  return it == schedule.groups.end() ? plan::Place{} : it->change;
}

}  // namespace

DeviceUpdates::DeviceUpdates(const plan::Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule,
                             Arenas arenas, const sink::GradientSink& sink)
    : schedule_(schedule),
      layout_(layout),
      rule_(rule),
      arenas_(arenas),
      reduced_(sink.make_device_update(rule, reinterpret_cast<float*>(arenas.at(schedule, change_of(schedule))))) {}

void DeviceUpdates::run(device::Device& device, device::Stream stream, plan::Index chunk) {
  if (schedule_.takes_change(chunk)) return apply_change(device, stream, chunk);
  const auto& it = schedule_.updated_at(chunk);
  const state::GroupPointers groups{.weight = arenas_.at(schedule_, it.weight),
                                    .state = arenas_.at(schedule_, it.state),
                                    .grad = arenas_.at(schedule_, it.grad)};
  if (layout_.chunks()[chunk].reduced.any()) {
    return reduced_->run(device, stream, layout_.chunks()[chunk], groups, step_);
  }
  update_spans(layout_, rule_, chunk, groups, step_, 0, layout_.chunks()[chunk].used,
               [&](const auto& located, const auto& step) {
                 device.run(stream, device::Update{.form = located.form, .span = located.span, .step = step});
               });
}

void DeviceUpdates::apply_change(device::Device& device, device::Stream stream, plan::Index chunk) {
  const auto& it = schedule_.changes[chunk];
  const state::GroupPointers groups{.weight = arenas_.at(schedule_, it.weight),
                                    .state = arenas_.at(schedule_, it.remainder),
                                    .change = arenas_.at(schedule_, it.there)};
  reduced_->apply(device, stream, layout_.chunks()[chunk], groups, step_);
}

}  // namespace spillway::execute
