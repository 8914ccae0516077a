#include "spillway/plan/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "spillway/base/error.h"
#include "tests/json_keys.h"
#include "tests/sys/failing.h"

namespace spillway::plan {
namespace {

constexpr const char* kEveryKey =
    R"({"compute_dtype": "fp32", "weight_dtype": "bf16", "optimizer": "lion", "state_format": "bf16", "seed": 7,
          "hidden_size": 8, "micro_batches": 4, "accumulation": 2, "virtual_ranks": 2, "tokens": 6, "tied_head": true,
          "world": 4, "rank": 3, "machines": 2, "step_tokens": 24, "chunk_elements": 4096,
          "subspaces": {"check_every": 5, "threshold": 0.5, "rotate": 3},
          "blocks": [{"name": "e", "role": "embedding", "tensors": [{"name": "t", "shape": [9, 8], "decay": true}]},
                     {"name": "l", "role": "layer", "tensors": [
                        {"name": "a", "shape": [8, 8], "subspace": {"rank": 4, "nonzeros": 2}},
                        {"name": "b", "shape": [64, 8], "frozen": true, "form": "nf4", "pieces": 2},
                        {"name": "x", "shape": [2, 256, 512], "frozen": true, "form": "nf4", "pieces": 2, "apart": true,
                         "asked": 0.25, "asked_by_piece": [0.375, 0.125]},
                        {"name": "c", "shape": [8, 8], "frozen": true, "table": true},
                        {"name": "d", "shape": [8], "wide": true}]}]})";

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
  const auto read = parse_description(kEveryKey);
  const auto written = to_json(read);
  const auto again = parse_description(written);
  EXPECT_EQ(to_json(again), written);
  auto expected = nlohmann::json::parse(kEveryKey);
  for (auto& block : expected.at("blocks")) {
    for (auto& tensor : block.at("tensors")) tensor.emplace("decay", false);  // always written
  }
  EXPECT_EQ(written, expected.dump(2));
  EXPECT_EQ(again.world, (state::World{.size = 4, .rank = 3, .local = 2}));
  EXPECT_EQ(again.computes(), state::ComputeType::fp32);
  EXPECT_EQ(again.optimizer, &optim::lion);
  EXPECT_EQ(again.refits.rotate_every, 3U);
  EXPECT_EQ(again.chunk_elements, 4096U);
  ASSERT_EQ(again.blocks.size(), 2U);
  const auto& tensors = again.blocks[1].tensors;
  ASSERT_EQ(tensors.size(), 5U);
  EXPECT_EQ(tensors[0].training, state::Training::reduced);
  EXPECT_EQ(tensors[0].nonzeros, 2U);
  EXPECT_EQ(tensors[1].training, state::Training::frozen);
  EXPECT_EQ(tensors[1].pieces, 2U);
  EXPECT_TRUE(tensors[2].apart);
  EXPECT_EQ(tensors[2].asked, 0.25);
  EXPECT_EQ(tensors[2].asked_by_piece, (std::vector<double>{0.375, 0.125}));
  EXPECT_EQ(again.layout().chunks().size(), read.layout().chunks().size());
  EXPECT_TRUE(tensors[3].table);
  EXPECT_EQ(tensors[4].form, state::Form::fp32);
}

TEST(Json, AWrongTypeIsRefusedByItsKey) {
  const auto document = nlohmann::json::parse(kEveryKey);
  for (const auto& key : testing::list_keys(document)) {
    const auto words = testing::with_wrong_type(document, key).dump();
    EXPECT_ERROR(std::ignore = parse_description(words), ErrorCode::bad_input,
                 "the key " + key.name + " has the value");
  }
}

TEST(Json, AMissingKeyIsRefusedByItsNameIfEachFileHasIt) {
  const std::set<std::string> required = {"compute_dtype", "hidden_size", "micro_batches", "tokens", "blocks",
                                          "name",          "role",        "tensors",       "shape",  "nonzeros"};
  const auto document = nlohmann::json::parse(kEveryKey);
  for (const auto& key : testing::list_keys(document)) {
    const auto words = testing::without(document, key).dump();
    if (required.contains(key.key) || key.name.ends_with("subspace.rank")) {
      EXPECT_ERROR(std::ignore = parse_description(words), ErrorCode::bad_input, "the key " + key.name + " is missing");
    } else if (!std::set<std::string>{"world", "frozen"}.contains(key.key)) {  // ranks and forms that need these
      EXPECT_NO_THROW(std::ignore = parse_description(words)) << key.name;
    }
  }
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
