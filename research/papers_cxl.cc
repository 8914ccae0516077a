// CXL-aware allocation's cases: its placements by the study, Spillway's plans, and what bounds these.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "research/papers_tables.h"
#include "research/study/cxl.h"
#include "spillway/base/error.h"

namespace spillway::research {
namespace {

using namespace spillway::plan;
using namespace spillway::study;
using spillway::machine::Profile;

/// Percent of DRAM-only throughput that a placement loses.
double lost(const Hardware& hardware, const CxlWork& work, CxlPlacement how, double dram) {
  return 100 * (1 - dram / cxl_step_seconds(hardware, work, how));
}

// Batches and tokens as the released run.sh has them, for both of its models.
struct CxlCase {
  DecoderShape shape;
  CxlWork work;
};

std::vector<CxlCase> cxl_cases() {
  const struct {
    double batch, tokens;
  } table[] = {{1, 4096}, {8, 4096}, {16, 4096}, {1, 32768}, {2, 32768}, {3, 32768}};
  const DecoderShape smaller{"7B", 28, 3584, 18944, 3584, 512, 152064, false, true},
      larger{"12B", 40, 5120, 14336, 4096, 1024, 131072};
  std::vector<CxlCase> out;
  for (const auto& it : table) out.push_back({smaller, {7.6e9, 28U, 3584U, it.tokens, it.batch}});
  for (const auto& it : table) out.push_back({larger, {12.2e9, 40U, 5120U, it.tokens, it.batch}});
  return out;
}

Profile with_two_cards(Profile profile) {
  profile.nodes.push_back(profile.nodes.back());
  profile.nodes.back().id += 1;
  return profile;
}

std::string name_of(int dram, const CxlCase& of) {
  return std::to_string(dram) + " GiB of DRAM, " + of.shape.name + ", " +
         std::to_string(static_cast<int>(of.work.batch)) + " x " + std::to_string(static_cast<int>(of.work.sequence));
}

PlannedModel describe_case(const CxlCase& of, const char* format) {
  auto model = describe_decoder(of.shape);
  model.sequence = static_cast<std::uint64_t>(of.work.sequence);
  model.batch = static_cast<std::uint64_t>(of.work.batch);
  model.format = format;
  return model;
}

/// Seconds of a step of Spillway's own plan; none if no plan fits.
double plan_seconds(const Profile& profile, const CxlCase& of, const char* format) {
  try {
    return spillway_plan(profile, describe_case(of, format)).prediction.step_seconds;
  } catch (const spillway::Error&) {
    return std::numeric_limits<double>::quiet_NaN();
  }
}

/// The same machine without a card, with more DRAM than a run takes.
Profile with_dram_only(Profile profile) {
  profile.nodes.resize(1);
  profile.nodes.front().capacity = profile.dram_total = profile.dram_available = 1024 * GiB;
  return profile;
}

Profile with_dram(Profile profile, spillway::Bytes bytes) {
  profile.nodes.front().capacity = bytes;
  return profile;
}

/// Percent of the throughput of DRAM alone that Spillway's plans lose, of all cases.
struct Losses {
  double least = 100, most = -100;

  void add(double dram, double seconds) {
    const auto lost = 100 * (1 - dram / seconds);
    least = std::min(least, lost);
    most = std::max(most, lost);
  }
};

}  // namespace

void cxl_steps(Report& report) {
  const auto profile = report.profile("cxl"), cards = with_two_cards(profile);
  const auto one = report.machine("cxl"), two = make_hardware(cards);
  double least = 100, most = 0, most_two = 0, gain = 0;
  Losses exact, exact_two, bf16;
  for (const auto& it : cxl_cases()) {
    const auto dram = cxl_step_seconds(one, it.work, CxlPlacement::dram_only);
    const auto own = lost(one, it.work, CxlPlacement::class_wise, dram);
    const auto plan_dram = plan_seconds(with_dram_only(profile), it, "exact");
    exact.add(plan_dram, plan_seconds(profile, it, "exact"));
    exact_two.add(plan_dram, plan_seconds(cards, it, "exact"));
    bf16.add(plan_dram, plan_seconds(profile, it, "bf16"));
    least = std::min(least, own);
    most = std::max(most, own);
    most_two = std::max(most_two, lost(two, it.work, CxlPlacement::class_wise, dram));
    gain = std::max(gain, 100 * ((100 - own) / (100 - lost(one, it.work, CxlPlacement::interleaved, dram)) - 1));
  }
  report.row("cxl_steps", "class-wise, one card, least that is lost (%)", paper(1), least);
  report.row("cxl_steps", "class-wise, one card, most that is lost (%)", paper(3), most);
  report.row("cxl_steps", "class-wise, two cards, most that is lost (%)", paper(0), most_two, "about");
  report.row("cxl_steps", "most gained over interleaving, one card (%)", paper(21), gain, "fitted");
  const auto rows = [&](const std::string& side, const Losses& losses) {
    report.plan("cxl_steps", side + ", least that is lost (%)", losses.least);
    report.plan("cxl_steps", side + ", most that is lost (%)", losses.most);
  };
  rows("Spillway, one card", exact);
  rows("Spillway, two cards", exact_two);
  rows("Spillway, bf16 states, one card", bf16);
}

/// Seconds of each case for every side, a column each.
void cxl_seconds(Report& report) {
  const auto profile = report.profile("cxl");
  auto small = profile;
  for (auto& gpu : small.gpus) gpu.memory = 32 * GiB;
  for (const auto dram : {64, 100, 128}) {
    const auto one = with_dram(profile, dram * GiB), two = with_two_cards(one);
    const auto hardware = make_hardware(one), second = make_hardware(two);
    for (const auto& it : cxl_cases()) {
      const auto name = name_of(dram, it) + ": ";
      const auto column = [&](const char* side, double seconds) { report.plan("cxl_seconds", name + side, seconds); };
      column("DRAM only", cxl_step_seconds(hardware, it.work, CxlPlacement::dram_only));
      column("interleaved", cxl_step_seconds(hardware, it.work, CxlPlacement::interleaved));
      column("class-wise", cxl_step_seconds(hardware, it.work, CxlPlacement::class_wise));
      column("class-wise, two cards", cxl_step_seconds(second, it.work, CxlPlacement::class_wise));
      column("Spillway, DRAM only", plan_seconds(with_dram_only(profile), it, "exact"));
      column("Spillway", plan_seconds(one, it, "exact"));
      column("Spillway, two cards", plan_seconds(two, it, "exact"));
      column("Spillway, bf16 states", plan_seconds(one, it, "bf16"));
      column("Spillway, bf16 states, two cards", plan_seconds(two, it, "bf16"));
      column("Spillway, GPU of 32 GiB", plan_seconds(with_dram(small, dram * GiB), it, "exact"));
    }
  }
}

namespace {

/// Updates of a step on each node, and the passes beside them.
struct UpdateTimes {
  double dram = 0, card = 0;  ///< seconds in which the update lanes are busy
  double card_share = 0;      ///< of the elements, percent
  double forward = 0;         ///< seconds of forward passes
};

UpdateTimes update_times(const Plan& plan) {
  UpdateTimes out;
  double all = 0, on_card = 0;
  for (Index t = 0; t < plan.schedule.tasks.size(); ++t) {
    const auto& task = plan.schedule.tasks[t];
    if (task.lane != Lane::update || task.op != Op::update) continue;
    const auto& times = plan.prediction.tasks[t];
    (task.unit == 0 ? out.dram : out.card) += times.end - times.start;
    all += static_cast<double>(task.bytes);
    on_card += task.unit == 0 ? 0 : static_cast<double>(task.bytes);
  }
  for (const auto& pass : plan.schedule.passes) {
    const auto& times = plan.prediction.tasks[pass.task];
    if (pass.kind == PassKind::forward) out.forward += times.end - times.start;
  }
  out.card_share = 100 * on_card / all;
  return out;
}

/// Bytes of exact or bf16 states and the weight of an element, and those that its update moves.
struct ElementBytes {
  double kept, moved;
};

/// Percent of throughput that any placement loses: DRAM is full of states, and the card, which has the rest of them and
/// all gradients, moves its bytes after the backward pass while forward passes last.
double least_lost(const Profile& profile, const Plan& dram_only, const UpdateTimes& times, ElementBytes bytes) {
  constexpr double kGradient = 2, kExactUpdate = 26;
  double elements = 0;
  for (const auto& task : dram_only.schedule.tasks) {
    if (task.lane == Lane::update && task.op == Op::update) elements += static_cast<double>(task.bytes);
  }
  const auto beyond = std::max(0.0, elements - static_cast<double>(profile.nodes.front().capacity) / bytes.kept);
  const auto moved = beyond * (bytes.moved - kGradient) + elements * kGradient;
  const auto seconds = moved / (kExactUpdate * profile.nodes.back().update_elements_per_second);
  const auto step =
      std::max(dram_only.prediction.step_seconds, dram_only.prediction.compute_seconds - times.forward + seconds);
  return 100 * (1 - dram_only.prediction.step_seconds / step);
}

}  // namespace

void cxl_bound(Report& report) {
  const auto profile = report.profile("cxl");
  const auto rate = [&](std::size_t node) { return profile.nodes[node].update_elements_per_second; };
  report.plan("cxl_bound", "One card's share of the bandwidth (%)", 100 * rate(1) / (rate(0) + rate(1)));
  for (const auto dram : {64, 100}) {
    const auto machine = with_dram(profile, dram * GiB);
    for (const auto& it : cxl_cases()) {
      if (it.work.batch * it.work.sequence > 4096) continue;
      const auto alone = spillway_plan(with_dram_only(profile), describe_case(it, "exact"));
      for (const char* format : {"exact", "bf16"}) {
        const bool exact = std::string(format) == "exact";
        const auto plan = spillway_plan(machine, describe_case(it, format));
        const auto times = update_times(plan);
        const auto name = name_of(dram, it) + ", Spillway, " + format + " states, ";
        const auto row = [&](const char* what, double value) { report.plan("cxl_bound", name + what, value); };
        row("updated on the card (%)", times.card_share);
        row("seconds of updates in DRAM", times.dram);
        row("seconds of updates on the card", times.card);
        row("seconds of forward passes", times.forward);
        row("least that any placement loses (%)",
            least_lost(machine, alone, times, exact ? ElementBytes{12, 26} : ElementBytes{8, 18}));
        row("lost (%)", 100 * (1 - alone.prediction.step_seconds / plan.prediction.step_seconds));
      }
    }
  }
}

/// Boundary activations of rows of 4K to 32K tokens, all in DRAM or all on the card.
void cxl_rows(Report& report) {
  auto profile = with_dram(report.profile("cxl"), 100 * GiB);
  for (const auto& shape : {cxl_cases().front().shape, cxl_cases().back().shape}) {
    for (const std::uint64_t tokens : {4096, 8192, 16384, 32768}) {
      auto model = describe_decoder(shape);
      model.sequence = tokens;
      const auto name = shape.name + ", 1 x " + std::to_string(tokens) + ", Spillway, ";
      for (const std::uint16_t tier : {0, 1}) {
        model.boundaries = tier;
        const auto plan = spillway_plan(profile, model);
        Bytes bytes = 0;
        for (const auto& buffer : plan.schedule.buffers) {
          if (buffer.kind == BufferClass::activation && buffer.on_host() && buffer.node == 1) bytes += buffer.bytes;
        }
        const std::string where = tier == 0 ? "boundary activations in DRAM, " : "boundary activations on the card, ";
        report.plan("cxl_rows", name + where + "seconds", plan.prediction.step_seconds);
        if (tier == 1) report.plan("cxl_rows", name + where + "GiB there", static_cast<double>(bytes) / GiB);
      }
    }
  }
}

namespace {

/// Bytes of bf16 that autograd saves of a token in a layer with fused norms and a fused feed-forward, as Spillway's
/// trace of 7B counts them: gate and up, queries and attention's output, keys and values, and three of the model's
/// width.
double saved_token_bytes(const DecoderShape& shape) {
  return 2 * static_cast<double>(2 * shape.feed_forward + 2 * shape.query + 2 * shape.key + 3 * shape.hidden);
}

/// Seconds of the fastest plan whose layers spill to that tier of host memory; none if none fits.
double seconds_from(const Plan& plan, std::uint16_t tier) {
  auto out = std::numeric_limits<double>::quiet_NaN();
  for (const auto& it : plan.compared_on(Axis::saved_activations)) {
    const bool is_there = it.decisions.layers.spill > 0 && it.decisions.layers.home == TierId{TierKind::host, tier};
    if (it.fits && is_there) out = std::fmin(out, it.step_seconds);
  }
  return out;
}

}  // namespace

/// Saved activations of rows of 4K to 32K tokens: computed again, on the GPU while they have room, or in host memory.
void cxl_saved(Report& report) {
  const auto profile = with_dram(report.profile("cxl"), 100 * GiB);
  for (const auto& shape : {cxl_cases().front().shape, cxl_cases().back().shape}) {
    for (const std::uint64_t tokens : {4096, 8192, 16384, 32768}) {
      auto model = describe_decoder(shape);
      model.sequence = tokens;
      const auto name = shape.name + ", 1 x " + std::to_string(tokens) + ", Spillway, ";
      const auto row = [&](const char* what, double value) { report.plan("cxl_saved", name + what, value); };
      const auto none = spillway_plan(profile, model);
      model.saved_token_bytes = saved_token_bytes(shape);
      const auto kept = spillway_plan(profile, model);
      model.spilling = shape.layers;
      const auto plan = spillway_plan(profile, model);
      row("all layers compute again, seconds", none.prediction.step_seconds);
      row("saved activations on the GPU, seconds", kept.prediction.step_seconds);
      row("layers that keep them there", static_cast<double>(kept.keeping.size()));
      row("all saved activations in DRAM, seconds", seconds_from(plan, 0));
      row("all saved activations on the card, seconds", seconds_from(plan, 1));
      row("GiB of all saved activations",
          model.saved_token_bytes * static_cast<double>(tokens * shape.layers) / static_cast<double>(GiB));
      row("GB from the GPU with all in host memory", static_cast<double>(plan.from_device_per_step) / 1e9);
    }
  }
}

}  // namespace spillway::research
