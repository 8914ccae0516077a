#include "spillway/plan/settings_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "spillway/base/error.h"
#include "tests/json_keys.h"
#include "tests/sys/failing.h"

namespace spillway::plan {
namespace {

using nlohmann::json;

EngineSettings full() {
  EngineSettings out{.dram_budget = (Bytes{1} << 53) + 1,
                     .saved_activations = {.blocks = {1, 2}, .token_bytes = 12.5, .keep = 1, .spill = Spill::all},
                     .placement = {.weight = 0.25, .grad = 0.5, .activation = "numa:2"},
                     .storage = {{.directory = "/a", .capacity = 5, .endurance = 7}, {.device = "/dev/b"}},
                     .near = 3,
                     .nodes = {{.kind = NodeKind::file, .id = 1, .directory = "/m", .anywhere = true}},
                     .seconds = {.forward = 1e-3, .kept_forward = 2},
                     .durability = Durability::checkpoint,
                     .update_schedule = Updates::early,
                     .clipping = false,
                     .run = "a \"run\""};
  out.device = DeviceSettings{.name = "cuda:1", .links = {{.node = 4, .to_gpu_bytes_per_second = 8}}, .state = 0.5};
  out.saving = Saving{.saves = 2, .limit = 1, .there = {9, 8}, .whole = {2}};
  out.file_systems = {{.name = "/", .free = 1, .paths = {0}, .output = true}};
  return out;
}

TEST(SettingsJson, AreReadAsTheyWereWritten) {
  const auto written = to_json(full());
  const auto again = parse_settings(written);
  EXPECT_EQ(to_json(again), written);
  EXPECT_EQ(again.dram_budget, full().dram_budget) << "no double has this number";
  EXPECT_EQ(std::get<std::string>(*again.placement.activation), "numa:2");
  EXPECT_EQ(again.device->links.at(0).node, 4U);
  EXPECT_EQ(again.saving->there, (std::vector<Bytes>{9, 8}));
  EXPECT_FALSE(again.clipping);
}

TEST(SettingsJson, HaveTheKeysOfTheConfigurationAndNothingThatIsEmpty) {
  const auto written = to_json(full());
  EXPECT_EQ(written.at("durability"), "checkpoint");
  EXPECT_EQ(written.at("update_schedule"), "early");
  EXPECT_EQ(written.at("saved_activations").at("spill"), "all");
  EXPECT_EQ(written.at("nodes").at(0).at("kind"), "file");
  EXPECT_EQ(written.at("placement"), (json{{"weight", 0.25}, {"grad", 0.5}, {"activation", "numa:2"}}));
  EXPECT_FALSE(written.contains("profile")) << "it is a file of its own kind";
  EXPECT_FALSE(to_json(EngineSettings{}).contains("device"));
}

TEST(SettingsJson, MissingKeysHaveTheirDefaults) {
  const auto read = parse_settings({{"dram_budget", 7}, {"device", nullptr}, {"a later key", 1}});
  EXPECT_EQ(read.dram_budget, 7U);
  EXPECT_TRUE(read.clipping);
  EXPECT_FALSE(read.device.has_value());
}

TEST(SettingsJson, AWrongTypeIsRefusedByItsKey) {
  const auto document = to_json(full());
  for (const auto& key : testing::list_keys(document)) {
    EXPECT_ERROR(std::ignore = parse_settings(testing::with_wrong_type(document, key)), ErrorCode::bad_input,
                 "the key " + key.name + " has the value");
  }
}

TEST(SettingsJson, AKeyMayBeMissing) {
  const auto document = to_json(full());
  for (const auto& key : testing::list_keys(document)) {
    if (key.name.find("links") != std::string::npos) continue;  // an entry of a profile, whose keys are required
    EXPECT_NO_THROW(std::ignore = parse_settings(testing::without(document, key))) << key.name;
  }
}

TEST(SettingsJson, WrongValuesAreRefusedByKey) {
  const auto words_of = [](const char* settings) -> std::string {
    try {
      static_cast<void>(parse_settings(json::parse(settings)));
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_NE(words_of(R"({"nodes": [{"id": -1}]})").find("nodes[0].id"), std::string::npos);
  EXPECT_NE(words_of(R"({"nodes": [{"capacity": "much"}]})").find("nodes[0].capacity"), std::string::npos);
  EXPECT_NE(words_of(R"({"nodes": [{"kind": "tape"}]})").find("known: numa, dram, file"), std::string::npos);
  EXPECT_NE(words_of(R"({"durability": "some"})").find("durability is some"), std::string::npos);
  EXPECT_NE(words_of(R"({"seconds": 3})").find("seconds"), std::string::npos);
  EXPECT_NE(words_of(R"({"storage": "a"})").find("storage"), std::string::npos);
  EXPECT_NE(words_of(R"({"clipping": 1})").find("clipping"), std::string::npos);
  EXPECT_NE(words_of(R"({"dram_budget": 1e19})").find("dram_budget"), std::string::npos);
  EXPECT_NE(words_of("[]").find("not a JSON object"), std::string::npos);
}

}  // namespace
}  // namespace spillway::plan
