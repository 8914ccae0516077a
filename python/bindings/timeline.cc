// What a timeline may show, as the report reads it.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "module.h"
#include "spillway/plan/kinds.h"

void bind_timeline(nanobind::module_& module) {
  module.def(
      "task_kinds",
      [] {
        std::vector<std::pair<std::string, std::string>> out;
        for (const auto& [name, colour] : spillway::plan::kind_labels()) out.emplace_back(name, colour);
        return out;
      },
      "What the names of tasks in a timeline begin with, and the colours that the report's page gives them.");
  module.def(
      "lanes",
      [] {
        std::vector<std::pair<std::string, bool>> out;
        for (const auto& lane : spillway::plan::kLanes) out.emplace_back(lane.name, lane.moves != nullptr);
        return out;
      },
      "Names of lanes in the order of their threads in a timeline, which counts from 1, and whether their tasks "
      "overlap, "
      "as transfers do; behind them come the update lanes of further nodes.");
}
