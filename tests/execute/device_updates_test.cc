// A chunk that lives on a device is updated where its groups lie there, to the bits of the kernel.
#include "spillway/execute/device_updates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "spillway/execute/reductions.h"
#include "spillway/plan/arena_layout.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::execute {
namespace {

TEST(DeviceUpdates, AreTheKernelsInTheArenaOfTheDevice) {
  const auto description = plan::test::describe({.layers = 2, .embedding = false, .head = false, .tied = false});
  const auto layout = description.layout();
  const auto rule = description.rule();
  auto placement = plan::test::placement_of(layout);
  placement.device = true;
  for (auto& it : placement.chunks) it.live_on_device();
  for (auto& it : placement.boundaries) it.copies.add(plan::TierKind::device);
  auto schedule = plan::make_schedule(description, layout, placement, {});
  std::vector<std::byte> host(lay_out(schedule)), memory(lay_out(schedule, plan::TierKind::device));
  std::mt19937 random(1);
  for (std::size_t i = 0; i + 2 <= memory.size(); i += 2) {
    const auto value = static_cast<std::uint16_t>(0x3c00 + random() % 0x200);
    std::memcpy(&memory[i], &value, 2);
  }
  const auto start = memory, untouched = host;

  auto step = optim::make_step(*description.optimizer, {{"learning_rate", 0.01}, {"weight_decay", 0.1}});
  step.step = 3;
  const Arenas arenas(host.data(), memory.data());
  const auto applied = element_step(rule, step);
  for (plan::Index c = 0; c < layout.chunks().size(); ++c) {
    const auto& at = schedule.updated_at(c);
    const state::GroupPointers groups{arenas.at(schedule, at.weight), arenas.at(schedule, at.state),
                                      arenas.at(schedule, at.grad)};
    for (const auto& span : layout.spans(c)) {
      auto own = applied;
      if (!layout.tensors()[span.tensor].spec.decay) own.weight_decay = 0;
      const auto found = locate(rule, layout.chunks()[c], span, groups, span.chunk_first, span.elements);
      kernels::update(found.form, found.span, own);
    }
  }
  const auto expected = memory;
  std::ranges::copy(start, memory.begin());

  const auto sink = make_sink(description, layout);
  DeviceUpdates updates(schedule, layout, rule, arenas, *sink);
  updates.set(step);
  const auto device = device::make_cpu();
  const auto stream = device->make_stream();
  for (plan::Index c = 0; c < layout.chunks().size(); ++c) updates.run(*device, stream, c);
  device->synchronise();
  EXPECT_TRUE(memory == expected);
  EXPECT_FALSE(memory == start);
  EXPECT_TRUE(host == untouched);
}

}  // namespace
}  // namespace spillway::execute
