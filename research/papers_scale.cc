// Spillway's plans for models and rows that the papers' machines hold at most.
#include <cstdio>
#include <string>

#include "research/papers_tables.h"
#include "spillway/base/error.h"

namespace spillway::research {
namespace {

using namespace spillway::plan;

constexpr double kGiB = static_cast<double>(GiB);

}  // namespace

PlannedModel describe_decoder(const study::DecoderShape& shape) {
  const auto size = [](std::uint64_t of) { return static_cast<std::int64_t>(of); };
  return {.layers = shape.layers,
          .hidden = size(shape.hidden),
          .vocabulary = size(shape.vocabulary),
          .matrices = llama_matrices(size(shape.hidden), size(shape.query), size(shape.key), size(shape.feed_forward)),
          .tied = shape.tied,
          .query = shape.query,
          .key = shape.key,
          .feed_forward = shape.feed_forward};
}

void scale(Report& report) {
  auto node = report.profile("mlp-offload");
  node.machines = 1;
  const study::DecoderShape shapes[] = {
      {"175B", 96, 12288, 32768, 12288, 12288, 50304},
      {"280B", 80, 16384, 49152, 16384, 16384, 50304},
  };
  for (const auto& shape : shapes) {
    for (const char* format : {"exact", "bf16"}) {
      auto model = describe_decoder(shape);
      model.sequence = 2048;
      model.durability = Durability::none;
      model.format = format;
      model.chunk_elements = 4 * state::kDefaultChunkElements;
      const auto name = shape.name + ", Spillway, " + format + " states, ";
      const auto row = [&](const char* what, double value) { report.plan("scale", name + what, value); };
      const auto processes = static_cast<double>(node.gpus.size());
      const auto plan = spillway_plan(node, model);
      row("iteration, seconds", plan.prediction.step_seconds);
      row("seconds of compute alone", plan.prediction.compute_seconds);
      row("seconds of the paths alone", plan.prediction.transfer_seconds);
      row("GiB of each GPU", static_cast<double>(plan.device_peak) / kGiB);
      row("GiB of DRAM", processes * static_cast<double>(plan.dram_peak) / kGiB);
      row("GB on the paths", processes * static_cast<double>(plan.path_bytes) / 1e9);
      row("GB read from the paths", processes * static_cast<double>(plan.read_per_step) / 1e9);
      row("GB written to the paths", processes * static_cast<double>(plan.written_per_step) / 1e9);
    }
  }
}

void long_rows(Report& report) {
  auto profile = report.profile("memascend");
  profile.gpus.front().memory = 80 * GiB;
  const study::DecoderShape shape{"Qwen2.5-7B", 28, 3584, 18944, 3584, 512, 152064, false, true};
  const struct {
    std::uint64_t batch, tokens;
  } cases[] = {{1, 16384}, {1, 32768}, {1, 65536}, {1, 131072}, {1, 262144},
               {4, 4096},  {8, 4096},  {16, 4096}, {32, 4096}};
  for (const auto& it : cases) {
    auto model = describe_decoder(shape);
    model.sequence = it.tokens;
    model.batch = it.batch;
    model.dram = 128 * GiB;
    const auto name = "Spillway, " + std::to_string(it.batch) + " x " + std::to_string(it.tokens) + ", ";
    const auto row = [&](const char* what, double value) { report.plan("long_rows", name + what, value); };
    try {
      const auto plan = spillway_plan(profile, model);
      row("seconds", plan.prediction.step_seconds);
      row("GiB of host memory", static_cast<double>(plan.dram_peak) / kGiB);
      row("GiB of the GPU", static_cast<double>(plan.device_peak) / kGiB);
      row("GB on the drives", static_cast<double>(plan.path_bytes) / 1e9);
      row("tokens a second", static_cast<double>(it.batch * it.tokens) / plan.prediction.step_seconds);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s%s\n", name.c_str(), error.what());
    }
  }
}

}  // namespace spillway::research
