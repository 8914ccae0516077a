// Do bandwidths of memory tiers add? All updates of a step, through the engine's lanes, with the real kernels and
// buffers, on two tiers of which the second is held down inside its lane (execute/pace.h): on the first alone,
// distributed by rate as the planner does, and interleaved one to one. One thread per lane. Prints JSON.
//
//   tiers [--ratio 4] [--layers 40] [--rounds 7] [--format exact|bf16|int8] [--first RATE]
//
// --first: hold the first tier down, too, to so many elements per second: where one thread alone nearly fills the
// memory that both tiers share here. Each round takes the three in turn, in memory of their own, filled before.
#include <spillway/engine.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "spillway/state/rule.h"

namespace {

using namespace spillway;  // NOLINT
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "usage: tiers [--ratio 4] [--layers 40] [--rounds 7] [--format exact|bf16|int8] [--first RATE]";
/// A limit that is none: but the caller, who helps lanes that are not held down, leaves this one alone.
constexpr double kUnlimited = 1e15;

/// Layers of one chunk each, and nothing to compute.
plan::Description describe(std::int64_t layers, state::StateFormat format) {
  plan::Description out;
  for (std::int64_t i = 0; i < layers; ++i) {
    out.blocks.push_back({"layer", state::BlockRole::layer, {{text("layers.", i), {2048, 2048}, true}}});
  }
  out.hidden_size = 64;
  out.tokens = 1;
  out.state_format = format;
  return out;
}

struct Tier {
  double rate = 0;   ///< that the planner is told
  double limit = 0;  ///< that its lane is held down to
};

class Updates {
 public:
  Updates(const plan::Description& description, const std::vector<Tier>& tiers) {
    Settings settings;
    settings.budget.dram = 64 * GiB;
    settings.rates.cores = 2;
    for (std::size_t n = 0; n < tiers.size(); ++n) {
      settings.budget.nodes.push_back({.id = static_cast<unsigned>(n), .capacity = 64 * GiB});
      settings.rates.nodes.push_back({.update = tiers[n].rate, .update_thread = tiers[n].rate});
      settings.nodes.push_back({.backing = memory::anywhere(), .limit = tiers[n].limit});
    }
    engine_ = std::make_unique<Engine>(description, settings);
    engine_->start();
    for (std::size_t t = 0; t < engine_->layout().tensors().size(); ++t) {
      std::vector<float> values(engine_->layout().tensors()[t].elements);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 2654435761U) % 1000) * 1e-4F;
      engine_->store_tensor(t, 0, values);
      gradient_.resize(values.size() * 2);
    }
    for (std::size_t i = 0; i < gradient_.size(); ++i)
      gradient_[i] = static_cast<std::byte>(i % 2 == 0 ? i * 37 : 0x3a);
  }

  /// Seconds that the updates of one step take.
  double step() {
    engine_->begin_step({.ids = {}, .counts = {1}});
    while (const auto pass = engine_->next_pass()) {
      if (pass->kind == plan::PassKind::backward) {
        engine_->gradient(engine_->layout().blocks()[pass->block].first_tensor, gradient_.data(), 0);
      }
      engine_->end_pass();
    }
    engine_->end_step({.learning_rate = 1e-5});
    const auto began = Clock::now();
    engine_->flush();
    return std::chrono::duration<double>(Clock::now() - began).count();
  }

  [[nodiscard]] const Engine& engine() const { return *engine_; }

  /// Part of the elements on the first tier.
  [[nodiscard]] double share() const {
    double first = 0, all = 0;
    const auto& chunks = engine_->layout().chunks();
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const auto elements = static_cast<double>(chunks[c].elements);
      all += elements;
      if (engine_->plan().placement[c].node() == 0) first += elements;
    }
    return first / all;
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::vector<std::byte> gradient_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Of the first tier alone, before the second is given its limit.
double rate_of_first(const plan::Description& description, double limit) {
  Updates alone(description, {{1e9, limit}});
  std::vector<double> seconds;
  for (int i = 0; i < 12; ++i) {
    const auto it = alone.step();
    if (i > 0) seconds.push_back(it);
  }
  return static_cast<double>(alone.engine().layout().parameters()) / median(seconds);
}

void run(bench::Arguments& arguments) {
  const auto ratio = arguments.real("--ratio", 4);
  const auto layers = static_cast<std::int64_t>(arguments.number("--layers", 40));
  const auto rounds = arguments.number("--rounds", 7);
  const auto format = arguments.text("--format", "exact");
  const auto first = arguments.real("--first", 0);
  static_cast<void>(arguments.rest(0, 0));
  const auto description = describe(layers, state::parse_format(format));
  const auto limit = first > 0 ? first : kUnlimited;
  const auto rate = rate_of_first(description, limit);

  Updates alone(description, {{rate, limit}});
  Updates distributed(description, {{rate, limit}, {rate / ratio, rate / ratio}});
  Updates interleaved(description, {{rate, limit}, {rate, rate / ratio}});
  std::vector<double> alone_seconds, distributed_seconds, interleaved_seconds, gains, beside_sum;
  for (std::uint64_t round = 0; round <= rounds; ++round) {
    const double a = alone.step(), d = distributed.step(), i = interleaved.step();
    if (round == 0) continue;  // pages, caches and thread starts
    alone_seconds.push_back(a);
    distributed_seconds.push_back(d);
    interleaved_seconds.push_back(i);
    gains.push_back(1 - d / a);
    beside_sum.push_back(d / (a * ratio / (ratio + 1)));
  }
  const auto one = median(alone_seconds), two = median(distributed_seconds), mixed = median(interleaved_seconds);
  const nlohmann::json out = {
      {"parameters", alone.engine().layout().parameters()},
      {"format", format},
      {"ratio", ratio},
      {"rounds", rounds},
      {"rate_of_first", rate},
      {"first_held_down", first > 0},
      {"share_of_first", {{"dealt", distributed.share()}, {"interleaved", interleaved.share()}}},
      {"seconds", {{"first_alone", one}, {"dealt", two}, {"interleaved", mixed}}},
      {"predicted_seconds",
       {{"first_alone", alone.engine().plan().prediction.update_seconds},
        {"dealt", distributed.engine().plan().prediction.update_seconds}}},
      {"dealt_faster_than_first_alone", median(gains)},
      {"dealt_beside_sum_of_rates", median(beside_sum)},
      {"interleaved_beside_first_alone", mixed / one},
      {"every",
       {{"first_alone", alone_seconds}, {"dealt", distributed_seconds}, {"interleaved", interleaved_seconds}}}};
  std::printf("%s\n", out.dump(1).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  bench::Arguments arguments(argc, argv, kUsage);
  return bench::finish("tiers", [&] { run(arguments); });
}
