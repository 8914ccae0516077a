// EngineTelemetry: what was planned, and what the run's parts say of themselves.
#include "spillway/engine_parts.h"
#include "spillway/execute/trace.h"
#include "spillway/plan/step/picture.h"

namespace spillway {

plan::PlanSummary EngineTelemetry::summarize_plan() const {
  return plan::summarize(parts_->plan(), parts_->description(), parts_->layout(), parts_->budget());
}
plan::Fits EngineTelemetry::what_fits(std::uint64_t sequence, std::uint64_t batch, double work_per_token,
                                      double device_per_token) const {
  return plan::find_fits({.description = parts_->description(),
                          .budget = parts_->budget(),
                          .rates = parts_->settings().rates,
                          .sequence = sequence,
                          .batch = batch,
                          .work_per_token = work_per_token,
                          .device_per_token = device_per_token,
                          .planned = &parts_->plan()});
}
execute::Counters EngineTelemetry::counters() const {
  auto out = execute::counters(parts_->run().counted(), parts_->budget());
  out.network = execute::network_counters(parts_->network());
  return out;
}
std::vector<std::pair<std::string, std::vector<std::uint64_t>>> EngineTelemetry::count_asked_pieces() const {
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> out;
  for (auto& it : parts_->run().step().asked_pieces().steps()) {
    out.emplace_back(std::move(it.tensor), std::move(it.steps));
  }
  return out;
}
std::vector<std::filesystem::path> EngineTelemetry::displaced_volumes() const {
  std::vector<std::filesystem::path> out;
  for (const auto* path : parts_->run().counted().storage.paths()) {
    if (path->is_displaced()) out.push_back(path->volume());
  }
  return out;
}
std::map<std::string, Silence> EngineTelemetry::silence() const {
  return execute::silence(parts_->run().counted(), parts_->plan(), parts_->layout(), parts_->budget());
}
std::optional<Delay> EngineTelemetry::lateness() const {
  return execute::lateness(parts_->run().counted(), parts_->plan().schedule, parts_->layout(), parts_->budget());
}
std::optional<execute::MemoryPlaces> EngineTelemetry::where() const {
  return execute::where(parts_->plan(), parts_->layout(), parts_->description().rule(), parts_->budget(),
                        parts_->settings().nodes, parts_->run().resources().host());
}
std::string EngineTelemetry::timeline() const {
  const auto times = parts_->started() ? parts_->run().step().executor().last_times() : std::vector<execute::Times>{};
  return execute::trace(parts_->plan(), parts_->layout(), times);
}

std::string EngineTelemetry::graph(std::string_view format) const {
  if (format != "svg" && format != "dot") {
    throw Error(ErrorCode::bad_input, text("graph: ", format, " is no format of it; there are svg and dot"));
  }
  const auto outline = plan::step::outline(parts_->plan().schedule, parts_->layout());
  return format == "svg" ? to_svg(outline) : to_dot(outline);
}

std::vector<RefitState> EngineTelemetry::refits() const {
  const auto& sink = parts_->run().resources().gradient_sink();
  std::vector<RefitState> out;
  for (std::size_t t = 0; t < parts_->layout().tensors().size(); ++t) {
    if (!parts_->layout().tensors()[t].reduced.any()) continue;
    out.push_back({t, sink.refit_count(t), sink.error(t)});
  }
  return out;
}

}  // namespace spillway
