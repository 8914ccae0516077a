#include "spillway/execute/trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/plan/memory_breakdown.h"

namespace spillway::execute {

std::string describe_task(const plan::Plan& plan, const state::Layout& layout, const plan::Task& task) {
  const auto& what = task.what;
  if (task.op == plan::Op::compute) {
    const auto& pass = plan.schedule.passes[what.index];
    return text(traits(pass.kind).name, " ", layout.blocks()[pass.block].name, " ", pass.slice);
  }
  const auto name = plan::label_of(task.op, task.lane, what.kind).name;
  switch (traits(what.kind).numbered) {
    case plan::Numbered::alone:
      return name;
    case plan::Numbered::by_layer:
    case plan::Numbered::by_number:
      return text(name, " ", what.index);
    case plan::Numbered::by_chunk:
      break;
  }
  const auto& block = layout.blocks()[layout.chunks()[what.index].block].name;
  return what.count == 1 ? text(name, " ", block, " chunk ", what.index)
                         : text(name, " ", block, " chunks ", what.index, " to ", what.end() - 1);
}

namespace {

using nlohmann::json;
using plan::Lane;

constexpr auto kUnits = static_cast<unsigned>(plan::kLanes.size());
constexpr int kDeviceThread = 1000;  // above the numbers of all update lanes

/// The first lane of each kind has its number, later update lanes those after them all.
int thread_of(const plan::Task& task) {
  return static_cast<int>(task.unit == 0 ? static_cast<unsigned>(task.lane) + 1 : task.unit + kUnits);
}

/// Arguments of a task, with the numbers of the later tiers of host memory that its buffers lie on.
json args_of(const plan::Schedule& schedule, const plan::Task& task, Bytes bytes) {
  json out = {{"bytes", bytes}, {"deadline", task.deadline}};
  if (task.when.every > 1) out["every"] = task.when.every;
  const auto add = [&](const char* name, plan::Index buffer) {
    if (buffer != plan::kNone && schedule.buffers[buffer].node > 0) out[name] = schedule.buffers[buffer].node;
  };
  if (task.op == plan::Op::transfer) {
    add("from_node", task.from.buffer);
    add("to_node", task.to.buffer);
  } else if (task.op == plan::Op::compute) {
    const auto& pass = schedule.passes[task.what.index];
    add("input_node", pass[plan::Operand::input]);
    add("output_node", pass[plan::Operand::output]);
    add("gradient_node", pass[plan::Operand::gradient]);
    add("saved_node", pass[plan::Operand::saved]);
    add("features_node", pass[plan::Operand::features]);
  }
  return out;
}

/// Bytes of a task; for a copy, the bytes that it has moved.
Bytes bytes_of(const plan::Task& task, const Times& times) {
  return is_of_device(task.lane) ? times.copied : task.bytes;
}

struct Span {
  double start = 0, end = 0;  ///< seconds
  Bytes bytes = 0;
};

/// Serial lanes as slices; transfers overlap, so they are asynchronous spans.
void add_task(json& events, int process, const plan::Schedule& schedule, std::size_t id, const std::string& name,
              const Span& span) {
  const auto& task = schedule.tasks[id];
  const double begin_us = span.start * 1e6, length_us = std::max(0.0, span.end - span.start) * 1e6;
  json event = {{"ph", "X"},      {"name", name},
                {"pid", process}, {"tid", thread_of(task)},
                {"ts", begin_us}, {"args", args_of(schedule, task, span.bytes)}};
  if (task.op != plan::Op::transfer) {
    event["dur"] = length_us;
    events.push_back(std::move(event));
    return;
  }
  event["ph"] = "b";
  event["cat"] = plan::name_of(task.lane);
  event["id"] = std::to_string(process) + "." + std::to_string(id);
  events.push_back(event);
  event["ph"] = "e";
  event["ts"] = begin_us + length_us;
  event.erase("args");
  events.push_back(std::move(event));
}

template <class Shown>
void add_names(json& events, int process, const char* name, std::size_t nodes, const Shown& shown) {
  events.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", process}, {"args", {{"name", name}}}});
  for (std::size_t number = 0; number < plan::kLanes.size(); ++number) {
    const auto lane = static_cast<Lane>(number);
    if (!shown(lane)) continue;
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", process},
                      {"tid", number + 1},
                      {"args", {{"name", plan::name_of(lane)}}}});
  }
  for (std::size_t unit = 1; unit < nodes; ++unit) {
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", process},
                      {"tid", unit + kUnits},
                      {"args", {{"name", "update, node " + std::to_string(unit)}}}});
  }
}

/// Adds the lane of the passes that were measured on the device.
void add_device_passes(json& events, const plan::Plan& plan, const state::Layout& layout,
                       const std::vector<Times>& times, double zero) {
  bool named = false;
  for (const auto& pass : plan.schedule.passes) {
    if (pass.task >= times.size() || times[pass.task].device_end <= 0) continue;
    const auto& it = times[pass.task];
    if (!std::exchange(named, true)) {
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", 1},
                        {"tid", kDeviceThread},
                        {"args", {{"name", "passes on the device"}}}});
    }
    events.push_back({{"ph", "X"},
                      {"name", describe_task(plan, layout, plan.schedule.tasks[pass.task])},
                      {"pid", 1},
                      {"tid", kDeviceThread},
                      {"ts", (it.device_start - zero) * 1e6},
                      {"dur", std::max(0.0, it.device_end - it.device_start) * 1e6}});
  }
}

/// Seconds at which every position of the step begins: that of its pass, or of the next pass that there is.
template <class Start>
std::vector<double> position_times(const plan::Schedule& schedule, Start&& start, double end) {
  std::vector<double> out(schedule.positions, -1);
  for (const auto& pass : schedule.passes) out[pass.position] = start(pass.task);
  for (auto p = out.size(); p-- > 0;) {
    if (out[p] < 0) out[p] = p + 1 < out.size() ? out[p + 1] : end;
  }
  return out;
}

/// The arena by class over the step, where it changes; positions that begin together count as the last of them.
template <class Start>
void add_memory(json& events, int process, const plan::Schedule& schedule, Start&& start, double end) {
  const auto held = plan::breakdown_by_position(schedule);
  const auto times = position_times(schedule, start, end);
  const std::map<std::string, Bytes>* told = nullptr;
  std::set<std::string> classes;
  for (const auto& now : held) {
    for (const auto& [name, bytes] : now) classes.insert(name);
  }
  for (std::size_t p = 0; p < held.size(); ++p) {
    const bool last_of_its_time = p + 1 == held.size() || times[p + 1] > times[p];
    if (!last_of_its_time || (told != nullptr && *told == held[p])) continue;
    told = &held[p];
    json args = json::object();
    for (const auto& name : classes) args[name] = told->contains(name) ? told->at(name) : 0;
    events.push_back({{"ph", "C"}, {"name", "arena"}, {"pid", process}, {"ts", times[p] * 1e6}, {"args", args}});
  }
}

}  // namespace

std::string trace(const plan::Plan& plan, const state::Layout& layout, const std::vector<Times>& times) {
  json events = json::array();
  const auto& tasks = plan.schedule.tasks;
  const auto shown = [&](Lane lane) { return has_lane(plan, lane); };
  add_names(events, 1, "measured", plan.node_peaks.size(), shown);
  add_names(events, 2, "predicted", plan.node_peaks.size(), shown);
  double zero = std::numeric_limits<double>::infinity();
  for (const auto& it : times) {
    if (it.end > 0) zero = std::min(zero, it.start);
  }
  double predicted_zero = 0;
  for (const auto& it : plan.prediction.tasks) predicted_zero = std::min(predicted_zero, it.start);
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const auto name = describe_task(plan, layout, tasks[t]);
    if (t < times.size() && times[t].end > 0) {
      add_task(events, 1, plan.schedule, t, name,
               {times[t].start - zero, times[t].end - zero, bytes_of(tasks[t], times[t])});
    }
    if (t < plan.prediction.tasks.size()) {
      const auto& it = plan.prediction.tasks[t];
      add_task(events, 2, plan.schedule, t, name, {it.start - predicted_zero, it.end - predicted_zero, tasks[t].bytes});
    }
  }
  add_device_passes(events, plan, layout, times, zero);
  const auto& last_pass = plan.schedule.passes.back();
  if (last_pass.task < times.size() && times[last_pass.task].end > 0) {
    const auto start = [&](plan::Index task) { return std::max(0.0, times[task].start - zero); };
    add_memory(events, 1, plan.schedule, start, times[last_pass.task].end - zero);
  }
  if (last_pass.task < plan.prediction.tasks.size()) {
    const auto& predicted = plan.prediction.tasks;
    const auto start = [&](plan::Index task) { return predicted[task].start - predicted_zero; };
    add_memory(events, 2, plan.schedule, start, predicted[last_pass.task].end - predicted_zero);
  }
  return json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace spillway::execute
