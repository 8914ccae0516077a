#include "spillway/machine/profile_json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/json_keys.h"
#include "tests/machine/measured_profile.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::machine {
namespace {

Profile sample() {
  Profile out;
  out.cores = 2;
  out.dram_total = 24 * GiB;
  out.dram_available = 23 * GiB + 1;
  out.paths = {{"0", 2.5e9, 1.0 / 3.0, 2.75e9, 0.125}, {"fast", 7e9, 6e9, 8e9, 0}};
  out.update_elements_per_second = 8.1e8;
  out.update_elements_per_second_all_cores = 9.2e8;
  out.update_elements_per_second_beside = 4.1e8;
  out.compute_share_beside_update = 0.55;
  out.machines = 4;
  out.network = 1.25e9;
  out.network_latency = 2e-4;
  out.copy_bytes_per_second = 9.7e9;
  return out;
}

/// Another machine: two nodes, one of them a card, and a GPU.
Profile described() {
  auto out = sample();
  out.machine = "a server";
  out.comment = {"from a paper", "and fitted"};
  out.nodes = {{0, MemoryKind::dram, 20 * GiB, 1.5e9, 0, 0}, {2, MemoryKind::cxl, 100 * GiB, 0.4e9, 5.5e10, 3.5e10}};
  out.gpus = {{"0", 80 * GiB, 1 * GiB, 4e14, 5e10, 5.25e10, 5.125e10, 2e11}};
  out.paths[1].capacity = 5'000'000'000;
  out.gpus[0].elementwise_bytes_per_second = 1e12;
  out.gpus[0].attention_forward_flops_per_second = 2.5e14;
  out.gpus[0].attention_backward_flops_per_second = 1.5e14;
  out.gpus[0].call_seconds = 1e-5;
  out.gpus[0].shares_dram = true;
  out.compute = {{"bf16", {{256, 896, 4864, 5e10, 4e10, 3e10}}, {{1024, 2e10, 1e10}, {1024, 4e10, 3e10, 128}}, 9e9}};
  out.compute[0].operations = {{"mul", false, 3 << 20, 2e10}, {"silu_backward", true, 1 << 20, 1e10}};
  out.compute[0].call_seconds = 3e-6;
  out.compute[0].libraries_bytes = 5 * MiB;
  return out;
}

/// The sample as text, with one thing replaced.
std::string altered(const std::string& from, const std::string& to) {
  std::string out = to_json(sample());
  const auto at = out.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return out.replace(at, from.size(), to);
}

TEST(ProfileJsonTest, ReturnsWhatWentIn) {
  EXPECT_EQ(from_json(to_json(sample()), "p"), sample());
  Profile plain;
  plain.cores = 1;
  plain.dram_total = 1;
  EXPECT_EQ(from_json(to_json(plain), "p"), plain);
  EXPECT_EQ(from_json(to_json(described()), "p"), described());
}

TEST(ProfileJsonTest, AFileHasTheOrderOfTheFormat) {
  const auto lines = [](const Profile& profile) {
    std::string out;
    const auto json = nlohmann::ordered_json::parse(to_json(profile));
    for (const auto& [key, value] : json.items()) out += key + " ";
    return out;
  };
  EXPECT_EQ(to_json({.cores = 1, .dram_total = 2}), R"({
  "spillway_profile": 2,
  "cores": 1,
  "dram_total": 2,
  "dram_available": 0,
  "nodes": [],
  "gpus": [],
  "paths": [],
  "update_elements_per_second": 0.0,
  "copy_bytes_per_second": 0.0,
  "compute_flops_per_second": 0.0
}
)");
  EXPECT_EQ(lines(described()),
            "spillway_profile machine comment cores dram_total dram_available nodes gpus paths "
            "update_elements_per_second update_elements_per_second_all_cores update_elements_per_second_beside "
            "compute_share_beside_update copy_bytes_per_second compute_flops_per_second machines network "
            "network_latency compute ");
}

TEST(ProfileJsonTest, ReadsTheFormatBefore) {
  const auto words = R"({"spillway_profile": 1, "cores": 1, "dram_total": 9, "dram_available": 8, "paths": [],
                         "update_elements_per_second": 1, "copy_bytes_per_second": 2, "compute_flops_per_second": 3})";
  const auto profile = from_json(words, "p");
  EXPECT_EQ(profile.dram_available, 8U);
  EXPECT_TRUE(profile.nodes.empty() && profile.gpus.empty() && profile.machine.empty());
}

TEST(ProfileJsonTest, OneLineOfCommentIsEnough) {
  auto words = to_json(described());
  const auto at = words.find("\"comment\": [");
  words.replace(at, words.find(']', at) + 1 - at, "\"comment\": \"a line\"");
  EXPECT_EQ(from_json(words, "p").comment, std::vector<std::string>{"a line"});
}

TEST(ProfileJsonTest, IsReadableByAPerson) {
  const std::string words = to_json(sample());
  EXPECT_NE(words.find("\n  \"cores\": 2,\n"), std::string::npos) << words;
  EXPECT_EQ(words.back(), '\n');
}

TEST(ProfileJsonTest, NamesEveryMissingKey) {
  for (const std::string key :
       {"spillway_profile", "cores", "dram_total", "dram_available", "paths", "name", "read_bytes_per_second",
        "write_bytes_per_second", "mixed_bytes_per_second", "cores_at_full_speed", "update_elements_per_second",
        "copy_bytes_per_second", "compute_flops_per_second"}) {
    std::string words = to_json(sample());
    const auto begin = words.find("\"" + key + "\"");
    words.erase(begin + 1, key.size());
    const auto error = testing::error_of([&] { std::ignore = from_json(words, "file.json"); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::bad_input);
    EXPECT_EQ(std::string(error->what()).find("file.json: "), 0U) << error->what();
  }
  EXPECT_ERROR(std::ignore = from_json("{}", "p"), ErrorCode::bad_input, "spillway_profile is missing");
}

struct Bad {
  const char* from;
  const char* to;
  const char* part;  ///< of the message
};

TEST(ProfileJsonTest, NamesEveryAbsurdValue) {
  const Bad table[] = {
      {"\"cores\": 2", "\"cores\": 0", "cores is 0"},
      {"\"cores\": 2", "\"cores\": -2", "cores is -2"},
      {"\"cores\": 2", "\"cores\": 2.5", "cores is not a whole number"},
      {"\"cores\": 2", "\"cores\": 1e9", "cores is"},
      {"\"cores\": 2", "\"cores\": \"two\"", "cores is not a number"},
      {"\"cores\": 2", "\"corse\": 2", "corse is not a key"},
      {": 0.55", ": 1.5", "compute_share_beside_update is 1.5"},
      {"\"dram_total\": 25769803776", "\"dram_total\": 0", "dram_total is 0"},
      {"\"dram_total\": 25769803776", "\"dram_total\": 5", "dram_available is more than dram_total"},
      {"\"dram_total\": 25769803776", "\"dram_total\": 1e19", "dram_total is"},
      {"2500000000.0", "-1", "paths[0].read_bytes_per_second is -1"},
      {"2500000000.0", "1e30", "paths[0].read_bytes_per_second is 1e+30"},
      {"2500000000.0", "null", "paths[0].read_bytes_per_second is not a number"},
      {"\"fast\"", "\"0\"", "paths[1].name is the name of an earlier path"},
      {"\"fast\"", "\"\"", "paths[1].name is not a name"},
      {"\"fast\"", "7", "paths[1].name is not a name"},
      {"\"network\": 1250000000.0", "\"network\": 0", "machines is 4, and network"},
      {"\"machines\": 4", "\"machines\": 0", "machines is 0; it counts this machine, too"},
      {"\"spillway_profile\": 2", "\"spillway_profile\": 3", "spillway_profile is 3"},
  };
  for (const Bad& bad : table) {
    EXPECT_ERROR(std::ignore = from_json(altered(bad.from, bad.to), "p"), ErrorCode::bad_input, bad.part);
  }
}

TEST(ProfileJsonTest, NamesEveryAbsurdValueOfNodesAndGpus) {
  const Bad table[] = {
      {"\"id\": 2", "\"id\": 0", "nodes[1].id is the id of an earlier node"},
      {"\"id\": 2", "\"id\": -1", "nodes[1].id is -1"},
      {"\"cxl\"", "\"disk\"", "nodes[1].kind is disk; known: dram, cxl"},
      {"\"dram\"", "\"cxl\"", "nodes has no DRAM"},
      {"\"capacity\": 21474836480", "\"capacity\": 0", "nodes[0].capacity is 0"},
      {"\"capacity\": 21474836480", "\"capacity\": 99474836480", "nodes has more DRAM than dram_total"},
      {"\"capacity\": 21474836480", "\"size\": 1", "nodes[0].size is not a key"},
      {"55000000000.0", "-1", "nodes[1].to_gpus_bytes_per_second is -1"},
      {"35000000000.0", "1e15", "nodes[1].from_gpus_bytes_per_second is"},
      {"\"memory\": 85899345920", "\"memory\": 0", "gpus[0].memory leaves no memory"},
      {"\"reserved\": 1073741824", "\"reserved\": 85899345920", "gpus[0].reserved leaves no memory"},
      {"400000000000000.0", "0", "gpus[0].flops_per_second is 0"},
      {"52500000000.0", "0", "gpus[0].to_gpu_bytes_per_second is 0"},
      {"51250000000.0", "\"fast\"", "gpus[0].from_gpu_bytes_per_second is not a number"},
      {"\"from_gpu_bytes_per_second\"", "\"from_gpu\"", "gpus[0].from_gpu is not a key"},
      {"\"call_seconds\": 1e-05", "\"call_seconds\": 2", "gpus[0].call_seconds is 2"},
      {"\"shares_dram\": true", "\"shares_dram\": 1", "gpus[0].shares_dram is neither true nor false"},
      {"\"a server\"", "\"\"", "machine is not a name"},
      {"\"and fitted\"", "7", "comment is not text"},
      {"\"capacity\": 5000000000", "\"capacity\": -5", "paths[1].capacity is -5"},
  };
  for (const Bad& bad : table) {
    std::string words = to_json(described());
    const auto at = words.find(bad.from);
    ASSERT_NE(at, std::string::npos) << bad.from;
    words.replace(at, std::string(bad.from).size(), bad.to);
    EXPECT_ERROR(std::ignore = from_json(words, "p"), ErrorCode::bad_input, bad.part);
  }
}

/// described() with every key that a profile may have.
nlohmann::json with_every_key() {
  auto out = described();
  const auto measured = test::measured_profile();
  out.dram_total = measured.dram_total;
  out.nodes[0] = measured.nodes[0];
  out.gpus[0].links = {{.node = 0, .to_gpu_bytes_per_second = 1e10}};
  out.access = measured.access;
  out.layers = measured.layers;
  return nlohmann::json::parse(to_json(out));
}

TEST(ProfileJsonTest, AWrongTypeIsRefusedByItsKey) {
  const auto document = with_every_key();
  for (const auto& key : testing::list_keys(document)) {
    const auto words = testing::with_wrong_type(document, key).dump();
    EXPECT_ERROR(std::ignore = from_json(words, "p"), ErrorCode::bad_input, "p: " + key.name + " is n");
  }
}

TEST(ProfileJsonTest, AKeyIsOptionalOrItsAbsenceIsRefused) {
  const std::set<std::string> optional = {"machine",
                                          "comment",
                                          "nodes",
                                          "gpus",
                                          "capacity of a path",
                                          "to_gpus_bytes_per_second",
                                          "from_gpus_bytes_per_second",
                                          "available",
                                          "cpus of a node",
                                          "rate of a node",
                                          "update_elements_per_second_thread",
                                          "update_threads",
                                          "tier",
                                          "promised_read_bytes_per_second",
                                          "promised_write_bytes_per_second",
                                          "promised_latency_seconds",
                                          "reserved",
                                          "update_elements_per_second of a GPU",
                                          "peer_bytes_per_second",
                                          "links",
                                          "elementwise_bytes_per_second",
                                          "attention_forward_flops_per_second",
                                          "attention_backward_flops_per_second",
                                          "call_seconds",
                                          "shares_dram",
                                          "update_elements_per_second_all_cores",
                                          "update_elements_per_second_beside",
                                          "compute_share_beside_update",
                                          "machines",
                                          "network_latency",
                                          "access",
                                          "layers",
                                          "fp32_flops_per_second",
                                          "compute",
                                          "attention",
                                          "head_size",
                                          "operations",
                                          "libraries_bytes"};
  const auto kind_of = [](const std::string& name, const std::string& key) -> std::string {
    if (name.starts_with("paths") && key == "capacity") return "capacity of a path";
    if (name.starts_with("nodes") && key == "cpus") return "cpus of a node";
    if (name.starts_with("gpus") && key == "update_elements_per_second") return "update_elements_per_second of a GPU";
    constexpr std::array kRates = {"read_bytes_per_second", "write_bytes_per_second", "copy_bytes_per_second"};
    if (name.starts_with("nodes") && std::ranges::find(kRates, key) != kRates.end()) return "rate of a node";
    return key;
  };
  const auto document = with_every_key();
  for (const auto& key : testing::list_keys(document)) {
    const auto words = testing::without(document, key).dump();
    if (optional.contains(kind_of(key.name, key.key))) {
      EXPECT_NO_THROW(std::ignore = from_json(words, "p")) << key.name;
    } else if (key.name == "network") {
      EXPECT_ERROR(std::ignore = from_json(words, "p"), ErrorCode::bad_input, "machines is 4, and network");
    } else {
      EXPECT_ERROR(std::ignore = from_json(words, "p"), ErrorCode::bad_input, "p: " + key.name + " is missing");
    }
  }
}

TEST(ProfileJsonTest, TheProfilesOfTheRepositoryComeBackWithAllThatTheySay) {
  std::size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(SPILLWAY_PROFILES)) {
    const auto profile = load_profile(file.path());
    const auto written = to_json(profile);
    EXPECT_EQ(to_json(from_json(written, "p")), written) << file.path();
    auto both = nlohmann::json::parse(written);
    const auto own = nlohmann::json::parse(std::ifstream(file.path()));
    for (const auto& key : testing::list_keys(own)) {
      const auto& value = own.at(key.at);
      if (value.is_primitive() && value != 0 && value != false && key.key != "comment") {
        EXPECT_EQ(both.at(key.at), value) << file.path() << ": " << key.name;
      }
    }
    ++files;
  }
  EXPECT_GT(files, 20U);
}

TEST(ProfileJsonTest, RefusesWhatIsNoProfile) {
  EXPECT_ERROR(std::ignore = from_json("{", "p"), ErrorCode::bad_input, "p: not JSON");
  EXPECT_ERROR(std::ignore = from_json("", "p"), ErrorCode::bad_input, "p: not JSON");
  EXPECT_ERROR(std::ignore = from_json("[]", "p"), ErrorCode::bad_input, "p: the profile is not an object");
  EXPECT_ERROR(std::ignore = from_json(R"({"spillway_profile": 1, "cores": 1, "dram_total": 1, "dram_available": 1,
                                           "paths": 3})",
                                       "p"),
               ErrorCode::bad_input, "paths is not a list");
}

TEST(ProfileJsonTest, SavesAndLoads) {
  const testing::TemporaryDirectory directory;
  const auto path = directory.path() / "profile.json";
  save_profile(sample(), path);
  save_profile(sample(), path);
  EXPECT_EQ(load_profile(path), sample());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
  EXPECT_ERROR(std::ignore = load_profile(directory.path() / "none"), ErrorCode::bad_input, "none");
  EXPECT_ERROR(std::ignore = load_profile(directory.path()), ErrorCode::bad_input, "is not a profile");
  EXPECT_ERROR(save_profile(sample(), directory.path() / "no" / "where"), ErrorCode::bad_input, "where");
}

TEST(ProfileJsonTest, AFailedSaveLeavesNothing) {
  const testing::TemporaryDirectory directory;
  std::filesystem::create_directories(directory.path() / "profile.json" / "in the way");
  EXPECT_ERROR(save_profile(sample(), directory.path() / "profile.json"), ErrorCode::bad_input, "profile.json");
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "profile.json.new"));
}

}  // namespace
}  // namespace spillway::machine
