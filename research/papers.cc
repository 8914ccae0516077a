// What the simulator says of each paper's own method on its machine, beside the published figure, and of Spillway's
// there.
//   papers PROFILES [TABLE]    the folder with papers-*.json and cluster.json; prints one JSON object, or one table
//                              (third_level, cluster) of it
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "research/papers_report.h"
#include "research/papers_tables.h"
#include "research/spillway_plan.h"
#include "research/study/cxl.h"
#include "research/study/host_memory.h"
#include "research/study/lsp.h"
#include "research/study/streamed.h"
#include "research/study/third_level.h"
#include "spillway/base/error.h"

namespace {

using namespace spillway::research;
using namespace spillway::plan;
using namespace spillway::study;
using spillway::GiB;
using spillway::machine::Profile;

constexpr double kGiB = static_cast<double>(GiB);

void transfers(Report& report) {
  const auto hardware = report.machine("cxl");
  const struct {
    const char* what;
    bool back;
    Shares nodes;
    double one, two;
    const char *how, *how_two;
  } table[] = {
      {"to GPU, DRAM", false, {1, 0}, 51.8, 51.8, "given", ""},
      {"to GPU, CXL", false, {0, 1}, 49.8, 24.9, "given", ""},
      {"to GPU, 1:1", false, {0.5, 0.5}, 51.8, 49.6, "", ""},
      {"from GPU, DRAM", true, {1, 0}, 51.7, 51.2, "given", ""},
      {"from GPU, CXL", true, {0, 1}, 34.7, 18.2, "given", ""},
      {"from GPU, 1:1", true, {0.5, 0.5}, 50.2, 34.4, "", ""},
  };
  for (const auto& it : table) {
    const auto rate = [&](std::size_t n) { return transfer_rate(hardware, n, it.back, it.nodes, 2 * kGiB) / kGiB; };
    report.row("cxl_transfers", std::string(it.what) + ", one GPU", repository(it.one), rate(1), it.how);
    report.row("cxl_transfers", std::string(it.what) + ", each of two", repository(it.two), rate(2), it.how_two);
  }
}

void updates(Report& report) {
  const auto hardware = report.machine("cxl");
  const auto ms = [&](double dram) { return 1e3 * update_seconds(hardware, 671e6, {dram, 1 - dram}); };
  report.row("cxl_updates", "DRAM", repository(67.6), ms(1), "given");
  report.row("cxl_updates", "CXL", repository(273.3), ms(0), "given");
  report.row("cxl_updates", "1:1", repository(138.9), ms(1.0 / 2));
  report.row("cxl_updates", "1:2", repository(175.6), ms(1.0 / 3));
  report.row("cxl_updates", "1:4", repository(216.3), ms(1.0 / 5));
  report.plan("cxl_updates", "4:1, by bandwidth", ms(4.0 / 5));
  const auto exact = [&](double dram) { return 1e3 * update_seconds(hardware, 671e6, {dram, 1 - dram}, 26); };
  report.plan("cxl_updates", "4:1, Spillway's exact states", exact(4.0 / 5));
}

void host_memory_table(Report& report) {
  const DecoderShape table[] = {
      {"Llama-3.1-8B", 32, 4096, 14336, 4096, 1024, 128256},
      {"Qwen2.5-7B", 28, 3584, 18944, 3584, 512, 152064, false, true},
      {"Qwen2.5-14B", 48, 5120, 13824, 5120, 1024, 152064, false, true},
      {"Qwen2.5-32B", 64, 5120, 27648, 5120, 1024, 152064, false, true},
  };
  const auto profile = report.profile("lohan");  // any machine with a GPU
  double saved = 0;
  for (const auto& shape : table) {
    const auto zero = static_cast<double>(zero_infinity_memory(shape).total());
    saved += 100 * (1 - static_cast<double>(memascend_memory(shape).total()) / zero) / 4;
    // The least that Spillway needs: nothing resident, next to no activations.
    auto model = describe_decoder(shape);
    model.sequence = 1;
    const auto least = static_cast<double>(least_host_memory(profile, model));
    report.plan("host_memory", shape.name + ", Spillway at least, GiB", least / kGiB);
  }
  report.row("host_memory", "saved by MemAscend on average (%)", paper(55.7), saved, "fitted");
}

void third_level(Report& report) {
  const auto hardware = report.machine("mlp-offload");
  auto node = report.profile("mlp-offload");
  node.machines = 1;
  struct Phases {
    double total, forward, backward, update;
  };
  // Shapes and buffers as the released logs and scripts have them; figures as the released scripts print them.
  const struct {
    DecoderShape shape;
    unsigned buffers;
    Phases zero, mlp;
    double first_wait;  // of an update with ZeRO-3, from the log of a run; 0: not released
  } table[] = {
      {{"40B", 128, 5120, 20480, 5120, 512, 50304},
       64,
       {242.28, 0.654, 27.47, 213.61},
       {101.72, 0.640, 2.044, 98.51},
       9.36},
      {{"52B", 64, 8192, 21824, 8192, 512, 50304},
       56,
       {238.60, 0.512, 28.29, 209.34},
       {92.17, 0.514, 1.833, 89.41},
       5.19},
      {{"70B", 80, 8192, 28672, 8192, 512, 50304},
       50,
       {370.56, 0.766, 32.91, 336.43},
       {151.34, 0.771, 2.946, 147.18},
       18.03},
      {{"100B", 124, 8192, 28672, 8192, 512, 50304},
       36,
       {572.03, 1.202, 68.34, 501.92},
       {275.53, 1.206, 4.563, 269.25},
       10.18},
      {{"120B", 96, 10240, 28672, 10240, 512, 50304},
       36,
       {550.36, 1.166, 73.19, 475.48},
       {288.18, 1.161, 4.201, 282.33},
       0},
  };
  for (const auto& it : table) {
    const ThirdLevelWork work{.shape = it.shape, .tokens = 4 * 2048, .buffers = it.buffers, .layer_second = 1.3e-3};
    // The drive's reads are fitted to one update, the parallel file system to another, writes given by one log.
    const bool read = it.shape.name == "70B", far = it.shape.name == "40B";
    const auto rows = [&](const std::string& method, const Phases& published, const IterationTimes& times,
                          const char* update, const char* backward) {
      const auto name = it.shape.name + ", " + method;
      report.row("third_level", name + ", iteration", repository(published.total), times.total(), update);
      report.row("third_level", name + ", forward", repository(published.forward), times.forward, "fitted");
      report.row("third_level", name + ", backward", repository(published.backward), times.backward, backward);
      report.row("third_level", name + ", update", repository(published.update), times.update, update);
    };
    const auto zero = zero3_iteration(hardware, work), mlp = mlp_offload_iteration(hardware, work);
    rows("ZeRO-3 NVMe", it.zero, zero, read ? "fitted" : "", read ? "given" : "");
    if (it.first_wait > 0) {
      report.row("third_level", it.shape.name + ", ZeRO-3 NVMe, first wait of an update", repository(it.first_wait),
                 zero.first_wait, read ? "given" : "");
    }
    rows("MLP-Offload", it.mlp, mlp, far ? "fitted" : "", "");
    report.row("third_level", it.shape.name + ", speed-up", derived(it.zero.total / it.mlp.total),
               zero.total() / mlp.total());
    for (const char* format : {"exact", "bf16"}) {
      auto model = describe_decoder(it.shape);
      model.sequence = 2048;
      model.durability = Durability::none;
      model.format = format;
      const auto seconds = spillway_plan(node, model).prediction.step_seconds;
      report.plan("third_level", it.shape.name + ", Spillway, " + format + " states, iteration", seconds);
    }
  }
}

/// 70B on the machines of profiles/cluster.json, one sequence of 2048 tokens in a micro-batch.
void cluster(Report& report) {
  auto profile = report.described("cluster");
  auto model = describe_decoder({"70B", 80, 8192, 28672, 8192, 1024, 128256});
  model.sequence = 2048;
  const auto row = [&](const std::string& name) {
    const auto plan = spillway_plan(profile, model);
    const auto processes = static_cast<double>(profile.gpus.size());
    const auto between =
        processes * static_cast<double>(std::max(plan.schedule.sent_between, plan.schedule.received_between));
    report.plan("cluster", name + ", seconds", plan.prediction.step_seconds);
    report.plan("cluster", name + ", seconds of compute alone", plan.prediction.compute_seconds);
    report.plan("cluster", name + ", seconds of the network alone",
                plan.prediction.seconds[spillway::plan::Lane::network]);
    report.plan("cluster", name + ", GB to or from a machine", between / 1e9);
  };
  for (const std::uint64_t accumulation : {1, 2, 8, 16}) {
    model.micro_batches = accumulation;
    row("accumulation " + std::to_string(accumulation));
  }
  profile.network /= 8;
  row("accumulation 16, an eighth of the network");
}

void greedy_snake(Report& report) {
  // Saturated: so many micro-batches that more of them make no system faster.
  constexpr std::uint64_t kMicroBatches = 64;
  // A micro-batch is as large as the device's memory allows, so its activations are: tokens times hidden size.
  constexpr double kTokensTimesHidden = 1.62e8;
  const struct {
    const char* what;
    double parameters;
    std::uint64_t layers;
    double hidden;
    std::size_t devices;
    double published;
    const char* how;
  } table[] = {{"65B, one GPU", 65e9, 80, 8192, 1, 1.96, "fitted"},
               {"65B, four GPUs", 65e9, 80, 8192, 4, 1.93, ""},
               {"175B, one GPU", 175e9, 96, 12288, 1, 2.53, ""}};
  for (const auto& it : table) {
    auto hardware = report.machine("greedysnake");
    hardware.devices.resize(it.devices, hardware.devices.front());
    const StreamedWork work{.parameters = it.parameters,
                            .layers = it.layers,
                            .tokens = kTokensTimesHidden / it.hidden,
                            .micro_batches = kMicroBatches,
                            .border = 2 * kTokensTimesHidden};
    const auto factor = zero_infinity_seconds(hardware, work) / greedy_snake_seconds(hardware, work);
    report.row("greedysnake", it.what, paper(it.published), factor, it.how);
  }
}

void lohan_drives(Report& report) {
  auto lohan = report.machine("lohan");
  const auto drive = lohan.drives.front();
  for (const auto& [drives, published] :
       {std::pair{1, 70.0}, std::pair{2, 112.0}, std::pair{3, 136.0}, std::pair{6, 152.0}, std::pair{12, 148.0}}) {
    const auto name = std::to_string(drives) + (drives > 1 ? " drives" : " drive");
    lohan.drives.assign(static_cast<std::size_t>(drives), drive);
    const StreamedWork work{.parameters = 13e9, .layers = 40, .tokens = 65536, .border = 65536.0 * 5120 * 2};
    const auto flops = [&](double seconds) { return 8 * work.parameters * work.tokens / seconds / 1e12; };
    report.row("lohan", name, paper(published), flops(lohan_seconds(lohan, work)),
               drives == 1 || drives == 6 ? "fitted" : "");
    auto profile = report.profile("lohan");
    for (int d = 1; d < drives; ++d) {
      profile.paths.push_back(profile.paths.front());
      profile.paths.back().name = std::to_string(d);
    }
    PlannedModel model{.layers = 40,
                       .hidden = 5120,
                       .vocabulary = 50257,
                       .matrices = {{15360, 5120}, {5120, 5120}, {20480, 5120}, {5120, 20480}},
                       .tied = true,
                       .query = 5120,
                       .key = 5120,
                       .feed_forward = 20480,
                       .sequence = 1024,
                       .batch = 8,
                       .micro_batches = 8,
                       .dram = 128 * GiB,
                       .durability = Durability::none};
    const auto plan = spillway_plan(profile, model);
    report.plan("lohan", name + ", Spillway, 128 GiB of DRAM", flops(plan.prediction.step_seconds));
  }
}

// ---- LSP-Offload

constexpr double kRotation = 20;  ///< lsp_rotate_every

struct LspRun {
  std::string name;
  LspModel model;
  double tokens = 0, rank = 0, nonzeros = 0;
  double row = 0;  ///< tokens of a row
  LspDelays delays;

  [[nodiscard]] LspWork work(double d) const { return {.tokens = tokens, .rank = d}; }
  [[nodiscard]] double seconds(const Hardware& hardware, LspMethod method, double d) const {
    return lsp_step(hardware, model, work(d), method, delays).seconds;
  }
};

/// Matrices, tokens, d, r and delays as the released scripts have them; only Llama's `gate` is left out there.
LspRun deepseek() {
  return {
      .name = "DeepSeek-6.7B",
      .model = {.layers = 32, .matrices = {{4096, 4096, 4}, {11008, 4096, 2}, {4096, 11008}}, .table = 32256 * 4096},
      .tokens = 4 * 1024,
      .rank = 2048,
      .nonzeros = 8,
      .row = 1024,
      .delays = {.process = 1, .apply = 2, .late = 10}};
}
LspRun llama() {
  return {.name = "Llama-3B",
          .model = {.layers = 26,
                    .matrices = {{3200, 3200, 4}, {8640, 3200}, {8640, 3200, 1, false}, {3200, 8640}},
                    .table = 32000 * 3200},
          .tokens = 16 * 512,
          .rank = 1024,
          .nonzeros = 16,
          .row = 512};
}
LspRun gpt2() {
  return {.name = "GPT2-774M",
          .model = {.layers = 36,
                    .matrices = {{3840, 1280}, {1280, 1280}, {5120, 1280}, {1280, 5120}},
                    .table = 50257 * 1280},
          .tokens = 4 * 512,
          .rank = 512,
          .nonzeros = 16,
          .row = 512};
}

/// The machine with the device's rate at which the run takes so many seconds.
Hardware fitted(Hardware hardware, const LspRun& run, LspMethod method, double d, double seconds) {
  double low = 1e12, high = 1e15;
  for (int i = 0; i < 40; ++i) {
    auto& rate = hardware.devices.front().flops;
    rate = std::sqrt(low * high);
    (run.seconds(hardware, method, d) > seconds ? low : high) = rate;
  }
  return hardware;
}

/// The run as Spillway plans it on a machine whose GPU computes as fast as `hardware`'s.
Plan planned(Profile profile, const Hardware& hardware, const LspRun& run, double d) {
  auto& gpu = profile.gpus.front();
  gpu.flops_per_second = hardware.devices.front().flops;
  gpu.to_gpu_bytes_per_second = hardware.devices.front().to_device;
  gpu.from_gpu_bytes_per_second = hardware.devices.front().from_device;
  const auto size = [](double of) { return static_cast<std::int64_t>(of); };
  PlannedModel model{.layers = run.model.layers, .hidden = size(run.model.matrices.front().columns)};
  for (const auto& it : run.model.matrices) {
    model.matrices.push_back({size(it.rows), size(it.columns), it.count, it.trained});
    model.feed_forward = std::max(model.feed_forward, static_cast<std::uint64_t>(std::max(it.rows, it.columns)));
  }
  model.vocabulary = size(run.model.table) / model.hidden;
  model.tables_train = false;
  model.query = model.key = static_cast<std::uint64_t>(model.hidden);
  model.sequence = static_cast<std::uint64_t>(run.row);
  model.batch = static_cast<std::uint64_t>(run.tokens / run.row);
  model.rank = static_cast<std::uint64_t>(d);
  model.nonzeros = static_cast<std::uint64_t>(run.nonzeros);
  model.rotate = d > 0 ? static_cast<std::uint64_t>(kRotation) : 0;
  return spillway_plan(profile, model);
}

/// Spillway's rows of a run, beside the same without offload.
void spillway_rows(Report& report, const Profile& profile, const Hardware& hardware, const LspRun& run) {
  const auto resident = run.seconds(hardware, LspMethod::resident, 0);
  const auto row = [&](const std::string& what, double d) {
    const auto seconds = planned(profile, hardware, run, d).prediction.step_seconds;
    report.plan("lsp", run.name + ", Spillway, " + what, seconds);
    report.plan("lsp", run.name + ", Spillway, " + what + ", times as long as without offload", seconds / resident);
  };
  row("whole gradients", 0);
  row("d = " + std::to_string(static_cast<int>(run.rank)), run.rank);
}

void lsp(Report& report) {
  const auto profile = report.profile("lsp"), laptop_profile = report.profile("lsp-laptop");
  const auto bare = make_hardware(profile), laptop_bare = make_hardware(laptop_profile);
  const auto row = [&](const Hardware& on, const LspRun& run, const std::string& what, LspMethod method, double d,
                       double published, const char* how = "") {
    report.row("lsp", run.name + ", " + what, repository(published), run.seconds(on, method, d), how);
  };
  const auto first = deepseek();
  const auto card = fitted(bare, first, LspMethod::resident, 0, 1.634);
  row(card, first, "without offload", LspMethod::resident, 0, 1.634, "given");
  row(card, first, "ZeRO-Offload as measured there", LspMethod::zero, 0, 4.108, "fitted");
  row(card, first, "LSP, d = 2048", LspMethod::published, 2048, 1.968);
  spillway_rows(report, profile, card, first);

  const auto second = llama();
  const auto for_second = fitted(bare, second, LspMethod::published, 256, 1.77);
  report.plan("lsp", second.name + ", without offload", second.seconds(for_second, LspMethod::resident, 0));
  row(for_second, second, "ZeRO-Offload as measured there", LspMethod::published, 0, 3.63, "fitted");
  row(for_second, second, "LSP, d = 256", LspMethod::published, 256, 1.77, "fitted");
  row(for_second, second, "LSP, d = 512", LspMethod::published, 512, 1.80);
  row(for_second, second, "LSP, d = 1024", LspMethod::published, 1024, 1.94);
  spillway_rows(report, profile, for_second, second);

  const auto third = gpt2();
  const auto laptop = fitted(laptop_bare, third, LspMethod::adapters, 0, 1.17);
  row(laptop, third, "LoRA", LspMethod::adapters, 0, 1.17, "given");
  report.plan("lsp", third.name + ", without offload", third.seconds(laptop, LspMethod::resident, 0));
  row(laptop, third, "ZeRO-Offload as measured there", LspMethod::published, 0, 3.14, "fitted");
  row(laptop, third, "LSP, d = 512", LspMethod::published, 512, 1.538);
  spillway_rows(report, laptop_profile, laptop, third);

  for (const double gigabytes : {10.0, 25.0}) {
    auto linked = card;
    linked.devices.front().to_device = linked.devices.front().from_device = gigabytes * 1e9;
    for (const double d : {0.0, first.rank}) {
      const auto plan = planned(profile, linked, first, d);
      const auto what =
          std::to_string(static_cast<int>(gigabytes)) + " GB/s each way, " + (d > 0 ? "d = 2048" : "whole gradients");
      report.plan("lsp_links", what + ", seconds", plan.prediction.step_seconds);
      report.plan("lsp_links", what + ", GB down", static_cast<double>(plan.from_device_per_step) / 1e9);
      report.plan("lsp_links", what + ", GB up", static_cast<double>(plan.to_device_per_step) / 1e9);
    }
  }
}

}  // namespace

int main(int count, char** words) {
  if (count < 2 || count > 3) {
    std::fputs("papers PROFILES [TABLE]: the folder with papers-*.json\n", stderr);
    return 2;
  }
  const std::pair<const char*, void (*)(Report&)> tables[] = {{"cxl_transfers", transfers},
                                                              {"cxl_updates", updates},
                                                              {"cxl_steps", cxl_steps},
                                                              {"cxl_seconds", cxl_seconds},
                                                              {"cxl_bound", cxl_bound},
                                                              {"cxl_rows", cxl_rows},
                                                              {"cxl_saved", cxl_saved},
                                                              {"host_memory", host_memory_table},
                                                              {"long_rows", long_rows},
                                                              {"third_level", third_level},
                                                              {"scale", scale},
                                                              {"cluster", cluster},
                                                              {"greedysnake", greedy_snake},
                                                              {"lohan", lohan_drives},
                                                              {"lsp", lsp}};
  try {
    Report report(words[1]);
    for (const auto& [name, make] : tables) {
      if (count == 2 || name == std::string(words[2])) make(report);
    }
    std::puts(report.text().c_str());
  } catch (const spillway::Error& error) {
    std::fprintf(stderr, "papers: %s\n", error.what());
    return 2;
  }
  return 0;
}
