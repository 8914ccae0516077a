#include "spillway/execute/resources.h"

#include <algorithm>

#include "spillway/execute/crossing.h"
#include "spillway/execute/nodes.h"
#include "spillway/execute/reductions.h"

namespace spillway::execute {
namespace {

memory::Arena map_arena(const RunPlan& plan, std::span<storage::Path* const> paths) {
  memory::Arena out(plan.plan.arena, arena_parts(plan.plan, plan.budget, plan.nodes));
  for (auto* path : paths) path->register_memory(out.pinnable());
  return out;
}

}  // namespace

Resources::Resources(const RunPlan& plan, unsigned threads, std::span<storage::Path* const> paths)
    : resident_(plan.plan.resident),
      arena_(map_arena(plan, paths)),
      sink_(make_sink(plan.description, plan.layout)),
      thread_pool_(std::max(1U, threads)),
      open_(open(plan)),
      cpu_(open_.device ? nullptr : device::make_cpu()),
      arithmetic_(make_arithmetic(plan)) {
  arithmetic_.device.use(parallel_for());
  sink_->use(arithmetic_, parallel_for());
}

OpenDevice Resources::open(const RunPlan& plan) const {
  if (!plan.plan.placement.device) return {};
  auto out = open_device(plan.device);
  auto first = crossing_offsets(plan.plan.schedule);
  const auto pinnable = arena_.pinnable();
  for (auto& offset : first) offset -= std::min(offset, static_cast<Bytes>(pinnable.data() - arena_.data()));
  out.device->register_host(pinnable, first);
  const auto files = arena_.span().first(arena_.size() - pinnable.size());
  if (!files.empty()) out.device->register_host(files);  // a GPU refuses pages of some file systems: these are staged
  out.device->allocate(plan.plan.device_arena);
  return out;
}

sink::Arithmetic Resources::make_arithmetic(const RunPlan& plan) {
  const auto sizes = plan::device_workspace(plan.description, plan.layout);
  if (cpu_) return {*cpu_, cpu_->adopt_stream(nullptr), nullptr, sizes};
  auto* const end = open_.device->memory().data() + plan.plan.device_arena;
  return {*open_.device, open_.stream, end - sizes.bytes(), sizes};
}

device::ParallelFor Resources::parallel_for() {
  return {&thread_pool_, [](void* self, std::size_t tiles, const void* body, ThreadPool::Call call) {
            static_cast<ThreadPool*>(self)->run_erased(tiles, body, call);
          }};
}

}  // namespace spillway::execute
