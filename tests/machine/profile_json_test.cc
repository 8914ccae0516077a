#include "spillway/machine/profile_json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

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
  out.copy_bytes_per_second = 9.7e9;
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
      {"\"dram_total\": 25769803776", "\"dram_total\": 0", "dram_total is 0"},
      {"\"dram_total\": 25769803776", "\"dram_total\": 5", "dram_available is more than dram_total"},
      {"\"dram_total\": 25769803776", "\"dram_total\": 1e19", "dram_total is"},
      {"2500000000.0", "-1", "paths[0].read_bytes_per_second is -1"},
      {"2500000000.0", "1e30", "paths[0].read_bytes_per_second is 1e+30"},
      {"2500000000.0", "null", "paths[0].read_bytes_per_second is not a number"},
      {"\"fast\"", "\"0\"", "paths[1].name is the name of an earlier path"},
      {"\"fast\"", "\"\"", "paths[1].name is not a name"},
      {"\"fast\"", "7", "paths[1].name is not a name"},
      {"\"spillway_profile\": 1", "\"spillway_profile\": 2", "spillway_profile is 2"},
  };
  for (const Bad& bad : table) {
    EXPECT_ERROR(std::ignore = from_json(altered(bad.from, bad.to), "p"), ErrorCode::bad_input, bad.part);
  }
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
