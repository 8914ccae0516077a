// What the simulator says of each paper's own method on its machine, beside the published figure, and of Spillway's
// there.
//   papers PROFILES    the folder with papers-*.json; prints one JSON object
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "spillway/base/error.h"
#include "spillway/machine/profile_json.h"
#include "spillway/plan/device_plan.h"
#include "spillway/plan/peers/cxl.h"
#include "spillway/plan/peers/host_memory.h"
#include "spillway/plan/peers/lsp.h"
#include "spillway/plan/peers/streamed.h"
#include "spillway/plan/peers/third_level.h"

namespace {

using namespace spillway::plan;
using nlohmann::json;
using spillway::GiB;

constexpr double kGiB = static_cast<double>(GiB);

class Report {
 public:
  explicit Report(std::filesystem::path folder) : folder_(std::move(folder)) {}

  [[nodiscard]] Hardware machine(const std::string& name) const {
    return make_hardware(spillway::machine::load_profile(folder_ / ("papers-" + name + ".json")));
  }
  /// `published` 0: there is none. `how`: "given" to the simulator, "fitted" to this figure, or "" (predicted).
  void row(const std::string& table, const std::string& what, double published, double simulated,
           const char* how = "") {
    out_[table].push_back({{"what", what}, {"published", published}, {"simulated", simulated}, {"how", how}});
  }
  [[nodiscard]] std::string text() const { return out_.dump(1); }

 private:
  std::filesystem::path folder_;
  json out_;
};

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
    report.row("cxl_transfers", std::string(it.what) + ", one GPU", it.one, rate(1), it.how);
    report.row("cxl_transfers", std::string(it.what) + ", each of two", it.two, rate(2), it.how_two);
  }
}

void updates(Report& report) {
  const auto hardware = report.machine("cxl");
  const auto ms = [&](double dram) { return 1e3 * update_seconds(hardware, 671e6, {dram, 1 - dram}); };
  report.row("cxl_updates", "DRAM", 67.6, ms(1), "given");
  report.row("cxl_updates", "CXL", 273.3, ms(0), "given");
  report.row("cxl_updates", "1:1", 138.9, ms(1.0 / 2));
  report.row("cxl_updates", "1:2", 175.6, ms(1.0 / 3));
  report.row("cxl_updates", "1:4", 216.3, ms(1.0 / 5));
  report.row("cxl_updates", "4:1, by bandwidth", 0, ms(4.0 / 5));
  const auto exact = [&](double dram) { return 1e3 * update_seconds(hardware, 671e6, {dram, 1 - dram}, 26); };
  report.row("cxl_updates", "4:1, Spillway's exact states", 0, exact(4.0 / 5));
}

void cxl_steps(Report& report) {
  auto one = report.machine("cxl"), two = one;
  two.nodes.push_back(two.nodes.back());
  two.nodes.back().name = "numa:3";
  double least = 10, least_two = 10, most = 0, dealt = 10, dealt_most = 0;
  for (const bool large : {false, true}) {
    for (const double sequence : {4096.0, 8192.0, 16384.0, 32768.0}) {
      for (const double batch : {1.0, 4.0, 16.0}) {
        const CxlWork work{large ? 12.2e9 : 7.6e9, large ? 40U : 28U, large ? 5120U : 3584U, sequence, batch};
        const auto dram = cxl_step_seconds(one, work, CxlPlacement::dram_only);
        const auto share = [&](const Hardware& hardware, CxlPlacement how) {
          return 100 * dram / cxl_step_seconds(hardware, work, how);
        };
        const auto class_wise = share(one, CxlPlacement::class_wise);
        least = std::min(least, class_wise / 100);
        least_two = std::min(least_two, share(two, CxlPlacement::class_wise) / 100);
        most = std::max(most, class_wise / share(one, CxlPlacement::interleaved) - 1);
        dealt = std::min(dealt, share(one, CxlPlacement::dealt) / 100);
        dealt_most = std::max(dealt_most, share(one, CxlPlacement::dealt) / 100);
      }
    }
  }
  report.row("cxl_steps", "class-wise, one card, least of DRAM only (%)", 97, 100 * least);
  report.row("cxl_steps", "class-wise, two cards, least of DRAM only (%)", 100, 100 * least_two);
  report.row("cxl_steps", "most over interleaving, one card (%)", 21, 100 * most, "fitted");
  report.row("cxl_steps", "Spillway's dealing, one card, least of DRAM only (%)", 0, 100 * dealt);
  report.row("cxl_steps", "Spillway's dealing, one card, most of DRAM only (%)", 0, 100 * dealt_most);
}

DeviceWork work_of(const DecoderShape& shape, std::uint64_t sequence) {
  return {.sequence = sequence, .query = shape.query, .key = shape.key, .feed_forward = shape.feed_forward};
}

ModelSizes sizes_of_shape(const DecoderShape& shape, double state) {
  const auto layer = static_cast<double>(shape.layer_parameters());
  return {.layers = static_cast<double>(shape.layers),
          .layer = layer,
          .matrix = layer,
          .table = static_cast<double>(shape.table()),
          .tables = 2,
          .hidden = static_cast<double>(shape.hidden),
          .vocabulary = static_cast<double>(shape.vocabulary),
          .state = state};
}

void host_memory_table(Report& report) {
  const struct {
    DecoderShape shape;
    double zero, ascend;
  } table[] = {
      {{"Llama-3.1-8B", 32, 4096, 14336, 4096, 1024, 128256}, 70.4, 32.2},
      {{"Qwen2.5-7B", 28, 3584, 18944, 3584, 512, 152064, false, true}, 69.3, 31.6},
      {{"Qwen2.5-14B", 48, 5120, 13824, 5120, 1024, 152064, false, true}, 105.3, 45.8},
      {{"Qwen2.5-32B", 64, 5120, 27648, 5120, 1024, 152064, false, true}, 187.5, 79.7},
  };
  double saved = 0;
  for (const auto& it : table) {
    const auto zero = static_cast<double>(zero_infinity_memory(it.shape).total()) / kGiB;
    const auto ascend = static_cast<double>(memascend_memory(it.shape).total()) / kGiB;
    report.row("host_memory", it.shape.name + ", ZeRO-Infinity", it.zero, zero);
    report.row("host_memory", it.shape.name + ", MemAscend", it.ascend, ascend);
    // The least that Spillway needs: nothing resident, activations not counted.
    auto least = host_memory(sizes_of_shape(it.shape, 10), work_of(it.shape, 1), 1, true);
    report.row("host_memory", it.shape.name + ", Spillway at least", 0, sum_of(least) / kGiB);
    saved += 100 * (1 - ascend / zero) / 4;
  }
  report.row("host_memory", "saved by MemAscend on average (%)", 55.7, saved);
}

/// Spillway on the same node, states in a format; seconds of a step.
double spillway_seconds(const Hardware& hardware, const DecoderShape& shape, double state) {
  DeviceRequest request{.hardware = hardware, .work = work_of(shape, 2048)};
  request.model = sizes_of_shape(shape, state);
  return plan_for(request).step.seconds;
}

void third_level(Report& report) {
  const auto hardware = report.machine("mlp-offload");
  struct Published {
    double total, forward, backward, update;
  };
  // Shapes and buffers as the released logs and scripts have them; figures as the released scripts print them.
  const struct {
    DecoderShape shape;
    unsigned buffers;
    Published zero, mlp;
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
    const auto rows = [&](const std::string& method, const Published& published, const IterationTimes& times) {
      const auto name = it.shape.name + ", " + method;
      report.row("third_level", name + ", iteration", published.total, times.total());
      report.row("third_level", name + ", forward", published.forward, times.forward, "fitted");
      report.row("third_level", name + ", backward", published.backward, times.backward);
      report.row("third_level", name + ", update", published.update, times.update);
    };
    const auto zero = zero3_iteration(hardware, work), mlp = mlp_offload_iteration(hardware, work);
    rows("ZeRO-3 NVMe", it.zero, zero);
    report.row("third_level", it.shape.name + ", ZeRO-3 NVMe, first wait of an update", it.first_wait, zero.first_wait);
    rows("MLP-Offload", it.mlp, mlp);
    report.row("third_level", it.shape.name + ", speed-up", it.zero.total / it.mlp.total, zero.total() / mlp.total());
    report.row("third_level", it.shape.name + ", Spillway, exact", 0, spillway_seconds(hardware, it.shape, 10));
    report.row("third_level", it.shape.name + ", Spillway, bf16 moments", 0, spillway_seconds(hardware, it.shape, 6));
  }
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
    report.row("greedysnake", it.what, it.published, factor, it.how);
  }
}

void lohan_drives(Report& report) {
  auto lohan = report.machine("lohan");
  const auto drive = lohan.drives.front();
  for (const auto& [drives, published] :
       {std::pair{1, 70.0}, std::pair{2, 112.0}, std::pair{3, 136.0}, std::pair{6, 152.0}, std::pair{12, 148.0}}) {
    lohan.drives.assign(static_cast<std::size_t>(drives), drive);
    const StreamedWork work{.parameters = 13e9, .layers = 40, .tokens = 65536, .border = 65536.0 * 5120 * 2};
    const auto flops = [&](double seconds) { return 8 * work.parameters * work.tokens / seconds / 1e12; };
    report.row("lohan", std::to_string(drives) + " drives", published, flops(lohan_seconds(lohan, work)),
               drives == 1 || drives == 6 ? "fitted" : "");
    DeviceRequest request{
        .hardware = lohan,
        .work = {.sequence = 1024, .batch = 8, .micro_batches = 8, .query = 5120, .key = 5120, .feed_forward = 20480}};
    request.model = {.layers = 40,
                     .layer = 13e9 / 40,
                     .matrix = 13e9 / 40,
                     .table = 2.6e8,
                     .tables = 1,
                     .hidden = 5120,
                     .vocabulary = 50257};
    request.hardware.dram_available = 128 * GiB;
    request.budget.durability = Durability::none;
    report.row("lohan", std::to_string(drives) + " drives, Spillway, 128 GiB of DRAM", 0,
               flops(plan_for(request).step.seconds));
  }
}

// ---- LSP-Offload

constexpr double kRotation = 20;  ///< lsp_rotate_every

struct LspRun {
  std::string name;
  LspModel model;
  double tokens = 0, rank = 0, nonzeros = 0;
  LspDelays delays;

  [[nodiscard]] LspWork work(double d) const {
    return {.tokens = tokens, .rank = d, .nonzeros = nonzeros, .rotate = kRotation};
  }
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
      .delays = {.process = 1, .apply = 2, .late = 10}};
}
LspRun llama() {
  return {.name = "Llama-3B",
          .model = {.layers = 26,
                    .matrices = {{3200, 3200, 4}, {8640, 3200}, {8640, 3200, 1, false}, {3200, 8640}},
                    .table = 32000 * 3200},
          .tokens = 16 * 512,
          .rank = 1024,
          .nonzeros = 16};
}
LspRun gpt2() {
  return {.name = "GPT2-774M",
          .model = {.layers = 36,
                    .matrices = {{3840, 1280}, {1280, 1280}, {5120, 1280}, {1280, 5120}},
                    .table = 50257 * 1280},
          .tokens = 4 * 512,
          .rank = 512,
          .nonzeros = 16};
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

/// Spillway's rows of a run, beside the same without offload.
void spillway_rows(Report& report, const Hardware& hardware, const LspRun& run) {
  const auto resident = run.seconds(hardware, LspMethod::resident, 0);
  const auto row = [&](const std::string& what, double d) {
    const auto seconds = run.seconds(hardware, LspMethod::spillway, d);
    report.row("lsp", run.name + ", Spillway, " + what, 0, seconds);
    report.row("lsp", run.name + ", Spillway, " + what + ", times as long as without offload", 0, seconds / resident);
  };
  row("whole gradients", 0);
  row("d = " + std::to_string(static_cast<int>(run.rank)), run.rank);
}

void lsp(Report& report) {
  const auto bare = report.machine("lsp"), laptop_bare = report.machine("lsp-laptop");
  const auto row = [&](const Hardware& on, const LspRun& run, const std::string& what, LspMethod method, double d,
                       double published, const char* how = "") {
    report.row("lsp", run.name + ", " + what, published, run.seconds(on, method, d), how);
  };
  const auto first = deepseek();
  const auto card = fitted(bare, first, LspMethod::resident, 0, 1.634);
  row(card, first, "without offload", LspMethod::resident, 0, 1.634, "given");
  row(card, first, "ZeRO-Offload as measured there", LspMethod::zero, 0, 4.108, "fitted");
  row(card, first, "LSP, d = 2048", LspMethod::published, 2048, 1.968);
  spillway_rows(report, card, first);

  const auto second = llama();
  const auto for_second = fitted(bare, second, LspMethod::published, 256, 1.77);
  row(for_second, second, "without offload", LspMethod::resident, 0, 0);
  row(for_second, second, "ZeRO-Offload as measured there", LspMethod::published, 0, 3.63, "fitted");
  row(for_second, second, "LSP, d = 256", LspMethod::published, 256, 1.77, "fitted");
  row(for_second, second, "LSP, d = 512", LspMethod::published, 512, 1.80);
  row(for_second, second, "LSP, d = 1024", LspMethod::published, 1024, 1.94);
  spillway_rows(report, for_second, second);

  const auto third = gpt2();
  const auto laptop = fitted(laptop_bare, third, LspMethod::adapters, 0, 1.17);
  row(laptop, third, "LoRA", LspMethod::adapters, 0, 1.17, "given");
  row(laptop, third, "without offload", LspMethod::resident, 0, 0);
  row(laptop, third, "ZeRO-Offload as measured there", LspMethod::published, 0, 3.14, "fitted");
  row(laptop, third, "LSP, d = 512", LspMethod::published, 512, 1.538);
  spillway_rows(report, laptop, third);

  for (const double gigabytes : {10.0, 25.0}) {
    auto linked = card;
    linked.devices.front().to_device = linked.devices.front().from_device = gigabytes * 1e9;
    for (const double d : {0.0, first.rank}) {
      const auto step = lsp_step(linked, first.model, first.work(d), LspMethod::spillway);
      const auto what =
          std::to_string(static_cast<int>(gigabytes)) + " GB/s each way, " + (d > 0 ? "d = 2048" : "whole gradients");
      report.row("lsp_links", what + ", seconds", 0, step.seconds);
      report.row("lsp_links", what + ", GB down", 0, step.down / 1e9);
      report.row("lsp_links", what + ", GB up", 0, step.up / 1e9);
    }
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) {
    std::fputs("papers PROFILES: the folder with papers-*.json\n", stderr);
    return 2;
  }
  try {
    Report report(words[1]);
    transfers(report);
    updates(report);
    cxl_steps(report);
    host_memory_table(report);
    third_level(report);
    greedy_snake(report);
    lohan_drives(report);
    lsp(report);
    std::puts(report.text().c_str());
  } catch (const spillway::Error& error) {
    std::fprintf(stderr, "papers: %s\n", error.what());
    return 2;
  }
  return 0;
}
