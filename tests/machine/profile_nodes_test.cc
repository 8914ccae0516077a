// What a profile says of NUMA nodes that were measured.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "spillway/machine/profile_json.h"
#include "tests/machine/measured_profile.h"
#include "tests/sys/failing.h"

namespace spillway::machine {
namespace {

TEST(ProfileNodesTest, ReturnWhatWentIn) {
  EXPECT_EQ(from_json(to_json(test::measured_profile()), "p"), test::measured_profile());
}

TEST(ProfileNodesTest, NamesEveryAbsurdValue) {
  struct BadNode {
    const char* from;
    const char* to;
    const char* part;  ///< of the message
  };
  const BadNode table[] = {
      {"\"available\": 64424509440", "\"available\": 1e12", "nodes[0].available is more than capacity"},
      {"\"cpus\": \"0-3\"", "\"cpus\": 3", "nodes[0].cpus is not a name"},
      {"\"read_bytes_per_second\": 31000000000.0", "\"read_bytes_per_second\": -31",
       "nodes[0].read_bytes_per_second is -31"},
      {"\"write_bytes_per_second\": 25000000000.0", "\"write_bytes_per_second\": 1e17",
       "nodes[0].write_bytes_per_second is 1e+17"},
      {"\"update_threads\": 2", "\"update_threads\": 2.5", "nodes[0].update_threads is not a whole number"},
      {"\"update_threads\": 2", "\"updaters\": 2", "nodes[0].updaters is not a key"},
      {"\"promised_latency_seconds\": 1e-07", "\"promised_latency_seconds\": 100",
       "nodes[0].promised_latency_seconds is 100"},
      {"\"distance\": 10", "\"distance\": 1000", "access[0].distance is 1000"},
      {"\"distance\": 10,", "", "access[0].distance is missing"},
      {"\"thread\": 15000000000.0", "\"thread\": \"fast\"", "access[0].read.thread is not a number"},
      {"\"thread\": 15000000000.0", "\"thread\": 99e9", "access[0].read.most is less than what one thread reaches"},
      {"\"hidden\": 896", "\"hidden\": -1", "layers[0].hidden is -1"},
      {"\"tokens\": 1024,", "", "layers[0].tokens is missing"},
  };
  for (const BadNode& bad : table) {
    std::string words = to_json(test::measured_profile());
    const auto at = words.find(bad.from);
    ASSERT_NE(at, std::string::npos) << bad.from << " in " << words;
    words.replace(at, std::string(bad.from).size(), bad.to);
    EXPECT_ERROR(std::ignore = from_json(words, "p"), ErrorCode::bad_input, bad.part);
  }
}

TEST(ProfileNodesTest, APairIsThereOnce) {
  auto profile = test::measured_profile();
  profile.access.push_back(profile.access.front());
  EXPECT_ERROR(std::ignore = from_json(to_json(profile), "p"), ErrorCode::bad_input, "access[1] is of an earlier pair");
}

}  // namespace
}  // namespace spillway::machine
