#include "spillway/plan/json.h"

#include <gtest/gtest.h>

#include "spillway/base/error.h"

namespace spillway::plan {
namespace {

constexpr const char* kNodes = R"({"dram_budget": 1e9, "update_cores": 10, "nodes": [
  {"id": 0, "capacity": 4000, "update": 8e9, "update_thread": 1e9, "read": 2e11},
  {"id": 2, "capacity": 5000, "update": 1e9, "update_thread": 5e8}]})";

TEST(Json, NodesAreBudgetsAndRates) {
  const auto budget = parse_budget(kNodes);
  ASSERT_EQ(budget.nodes.size(), 2U);
  EXPECT_EQ(budget.nodes[1].id, 2U);
  EXPECT_EQ(budget.nodes[1].capacity, 5000U);
  EXPECT_EQ(budget.nodes[1].name(), "numa:2");
  const auto rates = parse_rates(kNodes, {.cores = 16});
  ASSERT_EQ(rates.nodes.size(), 2U);
  EXPECT_EQ(rates.nodes[0].read, 2e11);
  EXPECT_EQ(rates.nodes[0].threads, 8U) << "eight of its threads fill the first, two the second";
  EXPECT_EQ(rates.nodes[1].threads, 2U);
  EXPECT_EQ(rates.nodes[0].scale_to(4), 4e9);
  EXPECT_EQ(rates.nodes[0].scale_to(12), 8e9);
}

TEST(Json, FilesAreTiersAndDramBesideThemHasTheBudget) {
  const auto* settings = R"({"dram_budget": 7000, "device": {"links": [{"node": 0,
    "to_gpu_bytes_per_second_together": 5, "from_gpu_bytes_per_second_together": 5}]}, "nodes": [
    {"kind": "dram", "update": 8e9},
    {"kind": "file", "id": 0, "directory": "/mnt", "capacity": 5000, "update": 1e9, "read": 3e9}]})";
  const auto budget = parse_budget(settings);
  ASSERT_EQ(budget.nodes.size(), 2U);
  EXPECT_EQ(budget.nodes[0].name(), "dram");
  EXPECT_EQ(budget.nodes[0].capacity, 7000U);
  EXPECT_EQ(budget.nodes[1].name(), "file:0");
  EXPECT_EQ(budget.nodes[1].capacity, 5000U);
  const auto rates = parse_rates(settings, {.cores = 4});
  EXPECT_EQ(rates.nodes[1].read, 3e9);
  EXPECT_EQ(rates.nodes[1].to_device, 0) << "links are of NUMA nodes";
}

TEST(Json, WithoutCoresOfTheirOwnUpdatesHaveThoseOfCompute) {
  std::string shared = kNodes;
  shared.replace(shared.find("10"), 2, "0 ");
  const auto rates = parse_rates(shared, {.cores = 16});
  EXPECT_EQ(rates.nodes[0].threads, 12U) << "15, since the caller takes part";
  EXPECT_EQ(rates.nodes[1].threads, 3U);
  for (const auto& node : parse_rates(shared, {.cores = 2}).nodes) EXPECT_EQ(node.threads, 1U);
  EXPECT_TRUE(parse_budget(R"({"dram_budget": 1})").nodes.empty());
}

TEST(Json, WhatLayersKeepIsABudgetAndRates) {
  const auto* given = R"({"dram_budget": 1e9, "seconds": {"forward": 1, "backward": 3, "kept_forward": 1.5},
    "saved_activations": {"blocks": [1, 2], "token_bytes": 12.5, "layers": 3, "keep": 1, "why": "one runs alone"}})";
  const auto saved = parse_budget(given).saved;
  EXPECT_EQ(saved.blocks, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(saved.token_bytes, 12.5);
  EXPECT_EQ(saved.layers, 3U);
  EXPECT_EQ(saved.keep, 1U);
  EXPECT_EQ(saved.why, "one runs alone");
  EXPECT_EQ(parse_rates(given, {}).kept_forward, 1.5);
  EXPECT_EQ(parse_rates(given, {}).kept_backward, 2) << "a forward pass less";
  EXPECT_FALSE(parse_budget(R"({"dram_budget": 1, "saved_activations": {"keep": null}})").saved.keep.has_value());
  EXPECT_TRUE(parse_budget(R"({"dram_budget": 1})").saved.blocks.empty());
}

TEST(Json, WhatLayersSpillIsABudget) {
  const auto* given = R"({"dram_budget": 1,
    "saved_activations": {"spill": "auto", "spilled_token_bytes": 8.5, "graph_token_bytes": 2}})";
  const auto saved = parse_budget(given).saved;
  EXPECT_EQ(saved.spill, Spill::automatic);
  EXPECT_EQ(saved.spilled_token_bytes, 8.5);
  EXPECT_EQ(saved.graph_token_bytes, 2);
  EXPECT_EQ(parse_rates(given, {.copy_bytes_per_second = 5e9}).copy, 5e9);
  EXPECT_EQ(parse_budget(R"({"dram_budget": 1, "saved_activations": {"spill": "all"}})").saved.spill, Spill::all);
  EXPECT_EQ(parse_budget(R"({"dram_budget": 1})").saved.spill, Spill::never);
  EXPECT_THROW(static_cast<void>(parse_budget(R"({"dram_budget": 1, "saved_activations": {"spill": "some"}})")), Error);
}

TEST(Json, NodesThatMakeNoSenseAreRefusedByKey) {
  for (const auto* nodes : {R"([{"id": -1, "capacity": 1}])", R"([{"id": 0}])", R"([{"id": 0, "capacity": "much"}])",
                            R"([{"kind": "tape", "id": 0, "capacity": 1}])", R"([{"kind": "file", "id": 0}])"}) {
    EXPECT_THROW(static_cast<void>(parse_budget(text(R"({"dram_budget": 1, "nodes": )", nodes, "}"))), Error) << nodes;
  }
  const auto* rates = R"({"nodes": [{"id": 0, "capacity": 1, "update": -5}]})";
  EXPECT_THROW(static_cast<void>(parse_rates(rates, {})), Error);
}

TEST(Json, DescriptionsThatMakeNoSenseAreRefusedByKey) {
  const auto error_of = [](const std::string& keys) -> std::string {
    try {
      static_cast<void>(
          parse_description(R"({"compute_dtype": "bf16", "micro_batches": 2, "blocks": [], )" + keys + "}"));
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(error_of(R"("hidden_size": 16, "tokens": 1, "virtual_ranks": 2)"), "");
  EXPECT_EQ(error_of(R"("hidden_size": 0, "tokens": 0)"), "") << "parameters alone have no tokens";
  EXPECT_NE(error_of(R"("hidden_size": 16, "tokens": 0)").find("tokens"), std::string::npos);
  EXPECT_NE(error_of(R"("hidden_size": 16, "tokens": 1, "virtual_ranks": 1e15)").find("virtual_ranks"),
            std::string::npos);
}

TEST(Json, ADescriptionIsReadAsItWasWritten) {
  const auto read = parse_description(
      R"({"compute_dtype": "fp32", "weight_dtype": "bf16", "optimizer": "lion", "state_format": "bf16", "seed": 7,
          "hidden_size": 8, "micro_batches": 4, "accumulation": 2, "virtual_ranks": 2, "tokens": 6, "tied_head": true,
          "world": 4, "rank": 3, "machines": 2, "step_tokens": 24, "chunk_elements": 4096,
          "subspaces": {"check_every": 5, "threshold": 0.5, "rotate": 3},
          "blocks": [{"name": "e", "role": "embedding", "tensors": [{"name": "t", "shape": [9, 8], "decay": true}]},
                     {"name": "l", "role": "layer", "tensors": [
                        {"name": "a", "shape": [8, 8], "subspace": {"rank": 4, "nonzeros": 2}},
                        {"name": "b", "shape": [64, 8], "frozen": true, "form": "nf4", "pieces": 2},
                        {"name": "c", "shape": [8, 8], "frozen": true, "table": true},
                        {"name": "d", "shape": [8], "wide": true}]}]})");
  const auto written = to_json(read);
  const auto again = parse_description(written);
  EXPECT_EQ(to_json(again), written);
  EXPECT_EQ(again.world, (state::World{.size = 4, .rank = 3, .local = 2}));
  EXPECT_EQ(again.computes(), state::ComputeType::fp32);
  EXPECT_EQ(again.optimizer, &optim::lion);
  EXPECT_EQ(again.refits.rotate, 3U);
  EXPECT_EQ(again.chunk_elements, 4096U);
  ASSERT_EQ(again.blocks.size(), 2U);
  const auto& tensors = again.blocks[1].tensors;
  ASSERT_EQ(tensors.size(), 4U);
  EXPECT_EQ(tensors[0].training, state::Training::reduced);
  EXPECT_EQ(tensors[0].nonzeros, 2U);
  EXPECT_EQ(tensors[1].training, state::Training::frozen);
  EXPECT_EQ(tensors[1].pieces, 2U);
  EXPECT_TRUE(tensors[2].table);
  EXPECT_EQ(tensors[3].form, state::Form::fp32);
}

TEST(Json, TheFormOfATensorIsSaidByName) {
  const auto described = [](const std::string& form) {
    return parse_description(
               text(
                   R"({"compute_dtype": "bf16", "hidden_size": 8, "tokens": 4, "micro_batches": 1, "blocks": [{"name": "l",)",
                   R"( "role": "layer", "tensors": [{"name": "w", "shape": [8, 8], "frozen": true)", form, "}]}]}"))
        .blocks[0]
        .tensors[0]
        .form;
  };
  EXPECT_EQ(described(""), state::Form::as_run);
  EXPECT_EQ(described(R"(, "wide": true)"), state::Form::fp32);
  EXPECT_EQ(described(R"(, "form": "nf4")"), state::Form::nf4);
  EXPECT_EQ(described(R"(, "form": "int8")"), state::Form::int8);
  EXPECT_EQ(described(R"(, "form": "nf4_nested")"), state::Form::nf4_nested);
  EXPECT_THROW(static_cast<void>(described(R"(, "form": "fp4")")), Error);
}

}  // namespace
}  // namespace spillway::plan
