#include "spillway/plan/described.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "spillway/base/error.h"
#include "spillway/plan/json.h"
#include "spillway/plan/planner.h"

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

json settings() {
  return {{"work", {{"sequence", 1024}, {"batch", 1}, {"query", 2048}, {"key", 2048}, {"feed_forward", 8192}}}};
}

json described(const json& asked, const machine::Profile& profile = workstation()) {
  return json::parse(describe_machine(parse_description(model()), asked.dump(), profile).settings);
}

Plan planned(const json& asked, const machine::Profile& profile = workstation()) {
  const auto found = describe_machine(parse_description(model()), asked.dump(), profile);
  const auto description = parse_description(model());
  return make_plan(description, description.layout(), parse_budget(found.settings),
                   parse_rates(found.settings, found.profile));
}

TEST(Described, TheMachineIsWhatTheProfileSaysUnlessTheKeysDo) {
  const auto found = described(settings());
  EXPECT_EQ(found.at("dram_budget"), static_cast<Bytes>(0.9 * static_cast<double>(60 * GiB)));
  EXPECT_EQ(found.at("device").at("memory"), 24 * GiB);
  EXPECT_EQ(found.at("device").at("to_device"), 25e9);
  EXPECT_EQ(found.at("update_cores"), 14);
  EXPECT_EQ(found.at("storage").size(), 1U);
  EXPECT_TRUE(found.at("nodes").empty()) << "one node is one tier";
  EXPECT_GT(found.at("seconds").at("backward"), found.at("seconds").at("forward"));
  auto asked = settings();
  asked["dram_budget"] = 8 * GiB;
  asked["gpu_memory"] = 4 * GiB;
  const auto bounded = described(asked);
  EXPECT_EQ(bounded.at("dram_budget"), 8 * GiB);
  EXPECT_EQ(bounded.at("device").at("memory"), 4 * GiB);
}

TEST(Described, PlansHoldTheBudgets) {
  for (const Bytes dram : {6 * GiB, 16 * GiB, 54 * GiB}) {
    for (const Bytes gpu : {3 * GiB, 6 * GiB, 24 * GiB}) {
      auto asked = settings();
      asked["dram_budget"] = dram;
      asked["gpu_memory"] = gpu;
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
  auto asked = settings();
  asked["gpu"] = false;
  EXPECT_FALSE(described(asked).contains("device"));
  auto profile = workstation();
  profile.gpus.clear();
  const auto found = described(settings(), profile);
  EXPECT_FALSE(found.contains("device"));
  EXPECT_GT(found.at("work_bytes"), 0);
  profile.compute_flops_per_second = 0;
  EXPECT_THROW(static_cast<void>(described(settings(), profile)), Error);
}

TEST(Described, ASimulatedDeviceComputesOnTheCpusAndCountsAsDram) {
  auto asked = settings();
  asked["simulated"] = 0.25;
  asked["dram_budget"] = 40 * GiB;
  const auto found = described(asked);
  EXPECT_EQ(found.at("device").at("memory"), 10 * GiB);
  EXPECT_EQ(found.at("device").at("in_dram"), true);
  auto on_cpus = settings();
  on_cpus["gpu"] = false;
  EXPECT_EQ(found.at("seconds"), described(on_cpus).at("seconds"));
  const auto plan = planned(asked);
  EXPECT_LE(plan.dram_peak, 40 * GiB);
}

json traced_pass(double tokens) {
  const json none{{"products", json::array()}, {"attention", json::array()}, {"elements", json::array()}, {"calls", 0}};
  auto each = none;
  each["products"] = {{{"product", "forward"}, {"tokens", tokens}, {"inner", 2048}, {"outer", 2048}, {"calls", 1}}};
  return {{"each", each}, {"once", none}};
}

/// Settings with a trace, whose few tokens take `few` of what would be too long.
json traced(double few) {
  auto out = settings();
  auto& work = out["work"];
  work["passes"] = {{"forward", traced_pass(1024)}, {"kept_forward", traced_pass(512)}};
  work["bytes"] = 100 * MiB;
  work["per_token"] = 1000;
  work["slack"] = 1.5;
  work["brief_slack"] = 2;
  const double seconds = 2.0 * 64 * 2048 * 2048 / 1e12;
  work["few"] = {
      {"tokens", 64}, {"passes", {{"forward", traced_pass(64)}}}, {"most_seconds", 1024 / 64 * seconds / few}};
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
  const auto found = described(traced(0.5), with_operations());
  const double forward = 4 * 2.0 * 1024 * 2048 * 2048 / 1e12;
  EXPECT_NEAR(found.at("seconds").at("forward").get<double>(), forward, 1e-9) << "four micro-batches";
  EXPECT_NEAR(found.at("seconds").at("kept_forward").get<double>(), forward / 2, 1e-9);
  EXPECT_FALSE(found.at("work").contains("passes"));
  EXPECT_EQ(found.at("attention_seconds"), 0) << "of a pass without any";
  auto without = with_operations();
  without.compute[0].operations.clear();
  const auto shapes = described(traced(0.5), without), plain = described(settings(), without);
  EXPECT_EQ(shapes.at("seconds"), plain.at("seconds")) << "by shapes";
  EXPECT_NE(shapes.at("work_bytes"), plain.at("work_bytes")) << "but what lies in memory is known";
}

/// The model with each of its four micro-batches in so many tiles of tokens.
std::string tiled_model(std::uint64_t tiles) {
  auto out = json::parse(model());
  out.update({{"accumulation", 4}, {"micro_batches", 4 * tiles}});
  return out.dump();
}

json seconds_in_tiles(std::uint64_t tiles, const json& asked, const machine::Profile& profile) {
  return json::parse(describe_machine(parse_description(tiled_model(tiles)), asked.dump(), profile).settings)
      .at("seconds");
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
      for (const auto* pass : {"head_loss", "head_gradient", "between"}) EXPECT_EQ(tiled.at(pass), whole.at(pass));
      EXPECT_GT(tiled.at("backward"), before.at("backward")) << tiles << " tiles sum as many gradients";
      EXPECT_LT(tiled.at("backward").get<double>(), 1.3 * whole.at("backward").get<double>()) << tiles << " tiles";
      before = tiled;
    }
  }
}

TEST(Described, AKeptLayerInTilesComputesItsFeedForwardAgain) {
  const auto whole = seconds_in_tiles(1, settings(), workstation()),
             tiled = seconds_in_tiles(2, settings(), workstation());
  const auto of = [](const json& seconds, const char* kind) { return seconds.at(kind).get<double>(); };
  EXPECT_NEAR(of(whole, "kept_backward"), of(whole, "backward") - of(whole, "forward"), 1e-12);
  const double feed_forward = 4 * 2.0 * 1024 * 2048 * (16384 + 8192) / workstation().gpus.front().flops_per_second;
  EXPECT_NEAR(of(tiled, "kept_backward") - of(whole, "kept_backward"), feed_forward, 0.01 * feed_forward);
  EXPECT_EQ(of(tiled, "kept_forward"), of(tiled, "forward"));
}

TEST(Described, StepsGrowWithTokensAndNotWithTheTilesThatTheyRunIn) {
  const auto seconds_of_step = [](std::uint64_t tiles) {
    const auto found = describe_machine(parse_description(tiled_model(tiles)), settings().dump(), workstation());
    const auto description = parse_description(tiled_model(tiles));
    return make_plan(description, description.layout(), parse_budget(found.settings),
                     parse_rates(found.settings, found.profile))
        .prediction.step_seconds;
  };
  EXPECT_LT(seconds_of_step(4), 1.3 * seconds_of_step(1));
}

TEST(Described, TheWorkingSetIsATracesWithTheSlackOfAPlanThere) {
  const auto slow = described(traced(2), with_operations()), quick = described(traced(0.5), with_operations());
  EXPECT_EQ(quick.at("work_bytes"), 150 * MiB + 10 * MiB);
  EXPECT_EQ(slow.at("work_bytes"), 200 * MiB + 10 * MiB);
  EXPECT_EQ(quick.at("work_per_token"), 1500);
  const auto gpu = described(traced(2));
  EXPECT_EQ(gpu.at("device").at("work"), GiB + static_cast<Bytes>(1.2 * static_cast<double>(100 * MiB)));
}

TEST(Described, AGpuWithRatesOfOperationsIsTimedByTheTrace) {
  auto profile = workstation();
  const auto derived = described(traced(2), profile).at("seconds").at("forward");
  profile.gpus.front().elementwise_bytes_per_second = 7e11;
  const auto found = described(traced(2), profile).at("seconds").at("forward").get<double>();
  EXPECT_NE(derived, found);
  profile.gpus.front().call_seconds = 1;
  auto asked = traced(2);
  asked["work"]["passes"]["forward"]["each"]["calls"] = 3;
  EXPECT_EQ(described(asked, profile).at("seconds").at("forward"), 4 * 3) << "of each of four micro-batches";
}

TEST(Described, MemoryThatAGpuSharesIsNotGivenTwice) {
  auto profile = workstation();
  profile.gpus.front().memory = profile.dram_total;
  const auto asked = traced(2);
  EXPECT_FALSE(described(asked, profile).at("device").contains("in_dram"));
  profile.gpus.front().shares_dram = true;
  const auto found = described(asked, profile);
  EXPECT_TRUE(found.at("device").at("in_dram"));
  EXPECT_EQ(found.at("work_bytes"), found.at("device").at("work")) << "temporaries lie in DRAM, too";
  EXPECT_LE(planned(asked, profile).dram_peak, found.at("dram_budget").get<Bytes>());
}

TEST(Described, LayersKeepWhatAutogradSavesWhereThatIsKnown) {
  auto asked = traced(0.5);
  asked["work"]["passes"]["backward"] = traced_pass(4096);
  asked["work"]["passes"]["kept_backward"] = traced_pass(3000);
  EXPECT_TRUE(planned(asked, with_operations()).keeping.empty());
  asked["saved_activations"] = {{"blocks", {1, 2, 3}}, {"token_bytes", 4096}, {"layers", 24}};
  EXPECT_EQ(planned(asked, with_operations()).keeping.size(), 3U);
}

TEST(Described, NodesAreThoseOfTheProfileOrThoseThatAreNamed) {
  auto profile = workstation();
  profile.nodes.insert(profile.nodes.begin(),
                       {.id = 2, .cxl = true, .capacity = 32 * GiB, .update_elements_per_second = 5e8});
  const auto all = described(settings(), profile).at("nodes");
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].at("id"), 0) << "what comes and goes lies in DRAM";
  auto asked = settings();
  asked["nodes"] = {{{"id", 0}, {"capacity", 8 * GiB}}};
  EXPECT_EQ(described(asked, profile).at("nodes").size(), 1U);
  asked["nodes"] = {{{"id", 9}, {"capacity", GiB}}};
  EXPECT_THROW(static_cast<void>(described(asked, profile)), Error);
  asked["nodes"] = {{{"id", 2}, {"capacity", 33 * GiB}}};
  EXPECT_THROW(static_cast<void>(described(asked, profile)), Error);
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
                  json asked = settings()) {
  const auto text = rank_of(size, machines);
  const auto found = describe_machine(parse_description(text), asked.dump(), profile);
  const auto description = parse_description(text);
  return make_plan(description, description.layout(), parse_budget(found.settings),
                   parse_rates(found.settings, found.profile));
}

TEST(Described, EachProcessOfAMachineHasItsShareOfIt) {
  const auto found = describe_machine(parse_description(rank_of(4, 2)), settings().dump(), node_of_two());
  const auto shared = json::parse(found.settings);
  EXPECT_EQ(shared.at("dram_budget"), static_cast<Bytes>(0.9 * static_cast<double>(30 * GiB)));
  EXPECT_EQ(shared.at("storage")[0].at("capacity"), 500 * GiB);
  EXPECT_EQ(shared.at("network_inside"), 9e9);
  EXPECT_EQ(found.profile.network, 0.5e9);
  EXPECT_EQ(shared.at("seconds"), described(settings()).at("seconds")) << "each computes as many micro-batches as one";
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
