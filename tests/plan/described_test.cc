#include "spillway/plan/described.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "spillway/base/error.h"
#include "spillway/plan/json.h"
#include "spillway/plan/planner.h"
#include "spillway/plan/settings.h"

namespace spillway::plan {
namespace {

using nlohmann::json;

machine::Profile workstation() {
  machine::Profile out;
  out.machine = "a workstation";
  out.cores = 16;
  out.dram_total = 64 * GiB;
  out.dram_available = 60 * GiB;
  out.nodes = {{.id = 0, .capacity = 64 * GiB, .update_elements_per_second = 2e9}};
  out.gpus = {{.memory = 24 * GiB,
               .reserved = GiB,
               .flops_per_second = 1e14,
               .update_elements_per_second = 3e10,
               .to_gpu_bytes_per_second = 25e9,
               .from_gpu_bytes_per_second = 25e9}};
  out.paths = {{.name = "fast", .read_bytes_per_second = 6e9, .write_bytes_per_second = 3e9, .capacity = 1000 * GiB}};
  out.update_elements_per_second = 5e8;
  out.compute_flops_per_second = 1e12;
  out.copy_bytes_per_second = 9e9;
  return out;
}

/// A model of about 1.5 billion parameters.
std::string model() {
  json blocks = json::array();
  blocks.push_back(
      {{"name", "embed"}, {"role", "embedding"}, {"tensors", {{{"name", "embed"}, {"shape", {32000, 2048}}}}}});
  for (int i = 0; i < 24; ++i) {
    const auto name = [&](const char* what) { return text("layers.", i, ".", what); };
    blocks.push_back({{"name", name("")},
                      {"role", "layer"},
                      {"tensors",
                       {{{"name", name("qkv")}, {"shape", {6144, 2048}}},
                        {{"name", name("out")}, {"shape", {2048, 2048}}},
                        {{"name", name("up")}, {"shape", {16384, 2048}}},
                        {{"name", name("down")}, {"shape", {2048, 8192}}}}}});
  }
  return json{{"compute_dtype", "bf16"}, {"hidden_size", 2048}, {"micro_batches", 4},
              {"tokens", 4096},          {"tied_head", true},   {"blocks", blocks}}
      .dump();
}

MachineRequest settings() {
  return {.settings = {},
          .work = {.sequence = 1024, .batch = 1, .query = 2048, .key = 2048, .feed_forward = 8192},
          .gpu_memory = 0};
}

MachineRequest without_gpu() {
  auto out = settings();
  out.gpu = false;
  return out;
}

EngineSettings described(const MachineRequest& asked, const machine::Profile& profile = workstation()) {
  return describe_machine(parse_description(model()), asked, profile).settings;
}

Plan plan_of(const std::string& model, const MachineRequest& asked, const machine::Profile& profile) {
  const auto description = parse_description(model);
  const auto found = describe_machine(description, asked, profile).settings;
  return make_plan(description, description.layout(), make_budget(found), make_rates(found));
}

Plan planned(const MachineRequest& asked, const machine::Profile& profile = workstation()) {
  return plan_of(model(), asked, profile);
}

TEST(Described, TheMachineIsWhatTheProfileSaysUnlessTheKeysDo) {
  const auto found = described(settings());
  EXPECT_EQ(found.dram_budget, static_cast<Bytes>(0.9 * static_cast<double>(60 * GiB)));
  EXPECT_EQ(found.device->memory, 24 * GiB);
  EXPECT_EQ(found.device->to_device, 25e9);
  EXPECT_EQ(found.update_cores, 14U);
  EXPECT_EQ(found.storage.size(), 1U);
  EXPECT_TRUE(found.nodes.empty()) << "one node is one tier";
  EXPECT_GT(found.seconds.backward, found.seconds.forward);
  auto asked = settings();
  asked.settings.dram_budget = 8 * GiB;
  asked.gpu_memory = 4 * GiB;
  const auto bounded = described(asked);
  EXPECT_EQ(bounded.dram_budget, 8 * GiB);
  EXPECT_EQ(bounded.device->memory, 4 * GiB);
}

TEST(Described, PlansHoldTheBudgets) {
  for (const Bytes dram : {6 * GiB, 16 * GiB, 54 * GiB}) {
    for (const Bytes gpu : {3 * GiB, 6 * GiB, 24 * GiB}) {
      auto asked = settings();
      asked.settings.dram_budget = dram;
      asked.gpu_memory = gpu;
      const auto plan = planned(asked);
      EXPECT_LE(plan.dram_peak, dram);
      EXPECT_LE(plan.device_peak, gpu);
      EXPECT_GT(plan.prediction.step_seconds, plan.prediction.compute_seconds * 0.999);
    }
  }
}

TEST(Described, AModelThatFitsOnTheGpuLivesThere) {
  auto asked = settings();
  const auto plan = planned(asked);
  EXPECT_GT(plan.decisions.blocks.device_resident, 20U);
  EXPECT_EQ(plan.written_per_step, 0U);
}

TEST(Described, CpusComputeWhereAskedOrWhereThereIsNoGpu) {
  const auto asked = without_gpu();
  EXPECT_FALSE(described(asked).device.has_value());
  auto profile = workstation();
  profile.gpus.clear();
  const auto found = described(settings(), profile);
  EXPECT_FALSE(found.device.has_value());
  EXPECT_GT(found.work_bytes, 0);
  profile.compute_flops_per_second = 0;
  EXPECT_THROW(static_cast<void>(described(settings(), profile)), Error);
}

TEST(Described, ASimulatedDeviceComputesOnTheCpusAndCountsAsDram) {
  auto asked = settings();
  asked.simulated = 0.25;
  asked.settings.dram_budget = 40 * GiB;
  const auto found = described(asked);
  EXPECT_EQ(found.device->memory, 10 * GiB);
  EXPECT_TRUE(found.device->in_dram);
  EXPECT_EQ(found.seconds, described(without_gpu()).seconds);
  const auto plan = planned(asked);
  EXPECT_LE(plan.dram_peak, 40 * GiB);
}

TracedPass traced_pass(double tokens) {
  TracedPass out;
  out.each.products = {{.tokens = tokens, .inner = 2048, .outer = 2048}};
  return out;
}

/// Settings with a trace, whose few tokens take `few` of what would be too long.
MachineRequest traced(double few) {
  auto out = settings();
  const double seconds = 2.0 * 64 * 2048 * 2048 / 1e12;
  out.work.trace = Trace{
      .passes = {{"forward", traced_pass(1024)}, {"kept_forward", traced_pass(512)}},
      .bytes = static_cast<double>(100 * MiB),
      .per_token = 1000,
      .slack = 1.5,
      .brief_slack = 2,
      .few = {.tokens = 64, .passes = {{"forward", traced_pass(64)}}, .most_seconds = 1024.0 / 64 * seconds / few}};
  return out;
}

machine::Profile with_operations() {
  auto out = workstation();
  out.gpus.clear();
  out.compute = {{.dtype = "bf16"}};
  out.compute[0].products = {{1024, 2048, 2048, 1e12, 1e12, 1e12}};
  out.compute[0].operations = {{"mul", false, 1000, 1e9}};
  out.compute[0].libraries_bytes = 10 * MiB;
  return out;
}

TEST(Described, SecondsAreThoseOfATraceWhereTheProfileKnowsOperations) {
  const auto found = describe_machine(parse_description(model()), traced(0.5), with_operations());
  const double forward = 4 * 2.0 * 1024 * 2048 * 2048 / 1e12;
  EXPECT_NEAR(found.settings.seconds.forward, forward, 1e-9) << "four micro-batches";
  EXPECT_NEAR(*found.settings.seconds.kept_forward, forward / 2, 1e-9);
  EXPECT_EQ(found.attention_seconds, 0) << "of a pass without any";
  auto without = with_operations();
  without.compute[0].operations.clear();
  const auto shapes = described(traced(0.5), without), plain = described(settings(), without);
  EXPECT_EQ(shapes.seconds, plain.seconds) << "by shapes";
  EXPECT_NE(shapes.work_bytes, plain.work_bytes) << "but what lies in memory is known";
}

/// The model with each of its four micro-batches in so many tiles of tokens.
std::string tiled_model(std::uint64_t tiles) {
  auto out = json::parse(model());
  out.update({{"accumulation", 4}, {"micro_batches", 4 * tiles}});
  return out.dump();
}

PassSeconds seconds_in_tiles(std::uint64_t tiles, const MachineRequest& asked, const machine::Profile& profile) {
  return describe_machine(parse_description(tiled_model(tiles)), asked, profile).settings.seconds;
}

TEST(Described, TracedSecondsOfAMicroBatchCountOnceInAnyNumberOfTiles) {
  for (const std::uint64_t tiles : {1, 2, 4, 16}) {
    EXPECT_EQ(seconds_in_tiles(tiles, traced(0.5), with_operations()),
              seconds_in_tiles(1, traced(0.5), with_operations()))
        << tiles << " tiles";
  }
}

TEST(Described, DerivedSecondsGrowWithTilesByTheirGradientSumsAlone) {
  auto gpu = workstation(), cpus = with_operations();
  gpu.gpus.front().elementwise_bytes_per_second = 7e11;
  cpus.compute.front().elementwise_bytes_per_second = 1e10;
  for (const auto& profile : {gpu, cpus}) {
    const auto whole = seconds_in_tiles(1, settings(), profile);
    auto before = whole;
    for (const std::uint64_t tiles : {2, 4}) {
      const auto tiled = seconds_in_tiles(tiles, settings(), profile);
      EXPECT_EQ(tiled.head_loss, whole.head_loss);
      EXPECT_EQ(tiled.head_gradient, whole.head_gradient);
      EXPECT_EQ(tiled.between, whole.between);
      EXPECT_GT(tiled.backward, before.backward) << tiles << " tiles sum as many gradients";
      EXPECT_LT(tiled.backward, 1.3 * whole.backward) << tiles << " tiles";
      before = tiled;
    }
  }
}

TEST(Described, AKeptLayerInTilesComputesItsFeedForwardAgain) {
  const auto whole = seconds_in_tiles(1, settings(), workstation()),
             tiled = seconds_in_tiles(2, settings(), workstation());
  EXPECT_NEAR(*whole.kept_backward, whole.backward - whole.forward, 1e-12);
  const double feed_forward = 4 * 2.0 * 1024 * 2048 * (16384 + 8192) / workstation().gpus.front().flops_per_second;
  EXPECT_NEAR(*tiled.kept_backward - *whole.kept_backward, feed_forward, 0.01 * feed_forward);
  EXPECT_EQ(*tiled.kept_forward, tiled.forward);
}

TEST(Described, StepsGrowWithTokensAndNotWithTheTilesThatTheyRunIn) {
  const auto seconds_of_step = [](std::uint64_t tiles) {
    return plan_of(tiled_model(tiles), settings(), workstation()).prediction.step_seconds;
  };
  EXPECT_LT(seconds_of_step(4), 1.3 * seconds_of_step(1));
}

TEST(Described, TheWorkingSetIsATracesWithTheSlackOfAPlanThere) {
  const auto slow = described(traced(2), with_operations()), quick = described(traced(0.5), with_operations());
  EXPECT_EQ(quick.work_bytes, 150 * MiB + 10 * MiB);
  EXPECT_EQ(slow.work_bytes, 200 * MiB + 10 * MiB);
  EXPECT_EQ(describe_machine(parse_description(model()), traced(0.5), with_operations()).work_per_token, 1500);
  const auto gpu = described(traced(2));
  EXPECT_EQ(gpu.device->work, GiB + static_cast<Bytes>(1.2 * static_cast<double>(100 * MiB)));
}

TEST(Described, AGpuWithRatesOfOperationsIsTimedByTheTrace) {
  auto profile = workstation();
  const auto derived = described(traced(2), profile).seconds.forward;
  profile.gpus.front().elementwise_bytes_per_second = 7e11;
  const auto found = described(traced(2), profile).seconds.forward;
  EXPECT_NE(derived, found);
  profile.gpus.front().call_seconds = 1;
  auto asked = traced(2);
  asked.work.trace->passes["forward"].each.calls = 3;
  EXPECT_EQ(described(asked, profile).seconds.forward, 4 * 3) << "of each of four micro-batches";
}

TEST(Described, ImagesTakeTheirBytesAndTheSecondsOfTheirTower) {
  auto asked = traced(0.5);
  const auto without = described(asked, with_operations()), without_gpu = described(asked);
  asked.work.host_bytes = 3 * MiB;
  asked.work.device_bytes = 5 * MiB;
  asked.work.trace->passes["entry_forward"] = traced_pass(4096);
  const auto cpus = described(asked, with_operations()), gpu = described(asked);
  EXPECT_EQ(cpus.work_bytes, without.work_bytes + 3 * MiB);
  EXPECT_EQ(gpu.work_bytes, 3 * MiB);
  EXPECT_EQ(gpu.device->work, without_gpu.device->work + 5 * MiB);
  for (const auto* found : {&cpus, &gpu}) {
    EXPECT_GT(found->seconds.entry_forward, 0);
    EXPECT_EQ(found->seconds.entry_backward, 0);
  }
  EXPECT_EQ(without.seconds.entry_forward, 0);
}

TEST(Described, MemoryThatAGpuSharesIsNotGivenTwice) {
  auto profile = workstation();
  profile.gpus.front().memory = profile.dram_total;
  const auto asked = traced(2);
  EXPECT_FALSE(described(asked, profile).device->in_dram);
  profile.gpus.front().shares_dram = true;
  const auto found = described(asked, profile);
  EXPECT_TRUE(found.device->in_dram);
  EXPECT_EQ(found.work_bytes, found.device->work) << "temporaries lie in DRAM, too";
  EXPECT_LE(planned(asked, profile).dram_peak, found.dram_budget);
}

TEST(Described, LayersKeepWhatAutogradSavesWhereThatIsKnown) {
  auto asked = traced(0.5);
  asked.work.trace->passes["backward"] = traced_pass(4096);
  asked.work.trace->passes["kept_backward"] = traced_pass(3000);
  EXPECT_TRUE(planned(asked, with_operations()).keeping.empty());
  asked.settings.saved_activations = {.blocks = {1, 2, 3}, .token_bytes = 4096, .layers = 24};
  EXPECT_EQ(planned(asked, with_operations()).keeping.size(), 3U);
}

TEST(Described, NodesAreThoseOfTheProfileOrThoseThatAreNamed) {
  auto profile = workstation();
  profile.nodes.insert(
      profile.nodes.begin(),
      {.id = 2, .kind = machine::MemoryKind::cxl, .capacity = 32 * GiB, .update_elements_per_second = 5e8});
  const auto all = described(settings(), profile).nodes;
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].id, 0U) << "what comes and goes lies in DRAM";
  auto asked = settings();
  asked.settings.nodes = {{.id = 0, .capacity = 8 * GiB}};
  EXPECT_EQ(described(asked, profile).nodes.size(), 1U);
  asked.settings.nodes = {{.id = 9, .capacity = GiB}};
  EXPECT_THROW(static_cast<void>(described(asked, profile)), Error);
  asked.settings.nodes = {{.id = 2, .capacity = 33 * GiB}};
  EXPECT_THROW(static_cast<void>(described(asked, profile)), Error);
}

TEST(Described, UpdateRatesFollowTheBytesOfAnUpdate) {
  auto profile = workstation();
  profile.nodes.push_back(
      {.id = 2, .kind = machine::MemoryKind::cxl, .capacity = 32 * GiB, .update_elements_per_second = 5e8});
  auto description = parse_description(model());
  const auto of = [&] { return describe_machine(description, settings(), profile).settings; };
  EXPECT_EQ(of().nodes[0].update, 2e9) << "profiles state the rate of AdamW with exact states";
  description.state_format = state::StateFormat::bf16;  // 18 bytes in place of 26
  EXPECT_NEAR(of().nodes[0].update, 2e9 * 26 / 18, 1);
  EXPECT_NEAR(of().nodes[1].update, 5e8 * 26 / 18, 1);
  EXPECT_NEAR(of().device->update, 3e10 * 26 / 18, 100);
  EXPECT_EQ(of().nodes[0].update_thread, 5e8) << "one thread is not bound by memory alone";
  description.state_format = state::StateFormat::exact;
  description.optimizer = &optim::muon;
  EXPECT_EQ(of().nodes[0].update, 2e9) << "products bound the updates of whole matrices";
}

TEST(Described, ARateThatAStepNeedsIsAskedFor) {
  auto profile = workstation();
  profile.nodes[0].update_elements_per_second = 0;
  EXPECT_THROW(static_cast<void>(described(settings(), profile)), Error);
  profile = workstation();
  profile.paths[0].read_bytes_per_second = 0;
  EXPECT_THROW(static_cast<void>(described(settings(), profile)), Error);
}

// ---- clusters

/// Rank 0 of so many processes on as many machines, two on each where `machines` is half of them.
std::string rank_of(std::uint64_t size, std::uint64_t machines) {
  auto out = json::parse(model());
  const auto micro_batches = 4 * size;
  out.update({{"world", size},
              {"rank", 0},
              {"machines", machines},
              {"virtual_ranks", size},
              {"micro_batches", micro_batches},
              {"step_tokens", 1024 * micro_batches}});
  return out.dump();
}

machine::Profile node_of_two() {
  auto out = workstation();
  out.gpus.push_back(out.gpus.front());
  out.gpus.back().name = "1";
  out.gpus.front().memory = out.gpus.back().memory = 4 * GiB;
  out.machines = 2;
  out.network = 1e9;
  return out;
}

Plan planned_rank(std::uint64_t size, std::uint64_t machines, const machine::Profile& profile,
                  const MachineRequest& asked = settings()) {
  const auto text = rank_of(size, machines);
  return plan_of(text, asked, profile);
}

TEST(Described, EachProcessOfAMachineHasItsShareOfIt) {
  const auto shared = describe_machine(parse_description(rank_of(4, 2)), settings(), node_of_two()).settings;
  EXPECT_EQ(shared.dram_budget, static_cast<Bytes>(0.9 * static_cast<double>(30 * GiB)));
  EXPECT_EQ(shared.storage[0].capacity, 500 * GiB);
  EXPECT_EQ(shared.network_inside, 9e9);
  EXPECT_EQ(shared.profile.network, 0.5e9);
  EXPECT_EQ(shared.seconds, described(settings()).seconds) << "each computes as many micro-batches as one";
}

TEST(Described, ACpuOfAClusterIsBoundByTheNetworkWhereThatIsSlow) {
  auto profile = node_of_two();
  profile.gpus.clear();
  profile.compute_flops_per_second = 1e14;
  profile.nodes[0].update_elements_per_second = 1e11;
  const auto slow = planned_rank(4, 4, profile);
  EXPECT_EQ(slow.prediction.bottleneck, "network");
  profile.network = 1e12;
  const auto fast = planned_rank(4, 4, profile);
  EXPECT_NE(fast.prediction.bottleneck, "network");
  EXPECT_LT(fast.prediction.step_seconds, slow.prediction.step_seconds);
  EXPECT_EQ(slow.schedule.network_sent, slow.schedule.sent_between) << "one process on each";
}

TEST(Described, ProcessesWithGpusSendEachOtherWhatTheHostHas) {
  const auto plan = planned_rank(4, 2, node_of_two());
  EXPECT_GT(plan.schedule.network_sent, plan.schedule.sent_between);
  EXPECT_GT(plan.schedule.sent_between, 0U);
  EXPECT_LE(plan.device_peak, 4 * GiB);
  const auto layout = parse_description(model()).layout();
  EXPECT_GE(plan.from_device_per_step, 4 * layout.parameters() * 9 / 10) << "sums leave a device in fp32";
}

TEST(Described, TwoLevelsCrossBetweenMachinesWhatOneProcessOnEachWould) {
  auto alone = node_of_two();
  alone.gpus.pop_back();
  const auto two = planned_rank(4, 2, node_of_two()), one = planned_rank(2, 2, alone);
  EXPECT_NEAR(2.0 * static_cast<double>(two.schedule.received_between),
              static_cast<double>(one.schedule.received_between),
              0.1 * static_cast<double>(one.schedule.received_between));
}

}  // namespace
}  // namespace spillway::plan
