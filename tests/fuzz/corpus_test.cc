// The fuzzers' corpus, and everything that a flipped bit, a cut or a doubled part makes of it, with the ordinary
// compiler: nothing ends the process. `make fuzz` looks for what is not in it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "tests/fuzz/targets.h"
#include "tests/nightly.h"

namespace spillway::fuzz {
namespace {

class Corpus : public ::testing::TestWithParam<std::string> {};

std::vector<std::uint8_t> changed(std::vector<std::uint8_t> bytes, std::mt19937& random) {
  if (bytes.empty()) return bytes;
  const auto any = [&] { return random() % bytes.size(); };
  switch (random() % 4) {
    case 0:
      bytes[any()] ^= static_cast<std::uint8_t>(1U << (random() % 8));
      break;
    case 1:
      bytes.resize(any());
      break;
    case 2: {
      const std::vector<std::uint8_t> part(bytes.begin(), bytes.begin() + std::ptrdiff_t(any()));
      bytes.insert(bytes.begin() + std::ptrdiff_t(any()), part.begin(), part.end());
      break;
    }
    default:
      bytes[any()] = static_cast<std::uint8_t>(random());
  }
  return bytes;
}

TEST_P(Corpus, NothingEndsTheProcess) {
  const auto target = targets().at(GetParam());
  std::mt19937 random(7);
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(SPILLWAY_CORPUS) + "/" + GetParam())) {
    std::ifstream stream(entry.path(), std::ios::binary);
    std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    target(bytes);
    const int times = testing::nightly() ? 20000 : 200;
    for (int i = 0; i < times; ++i) target(changed(changed(bytes, random), random));
    ++files;
  }
  EXPECT_GT(files, 0U);
}

INSTANTIATE_TEST_SUITE_P(Targets, Corpus,
                         ::testing::Values("header", "index", "superblock", "records", "recovery", "replay", "profile",
                                           "description"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace spillway::fuzz
