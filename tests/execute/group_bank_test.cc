#include "spillway/execute/group_bank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>

#include "spillway/base/error.h"
#include "tests/storage/fixture.h"

namespace spillway::execute {
namespace {

using spillway::testing::TemporaryDirectory;

/// Sizes below, at and above a piece; the last in no proportion.
const std::vector<Bytes> kSizes = {4096, MiB, 3 * MiB + 8192, 2 * MiB, MiB - 4096, 5 * MiB, 4096 * 3};
constexpr Bytes kStaging = 16 * MiB;  ///< three of the largest

/// Banks over drives whose faults a test scripts.
struct Drives {
  TemporaryDirectory first, second;
  std::array<std::shared_ptr<sys::Faults>, 2> faults = {std::make_shared<sys::Faults>(),
                                                        std::make_shared<sys::Faults>()};  ///< of one ring each

  std::unique_ptr<GroupBank> bank(Bytes staging = kStaging) {
    std::vector<std::unique_ptr<storage::Path>> paths;
    const Bytes each = round_up(path_bank_bytes(kSizes, staging) / 2, MiB) + MiB;
    for (const TemporaryDirectory* directory : {&first, &second}) {
      auto options = storage::testing::options_in(directory->path(), each);
      options.name = std::to_string(paths.size());
      options.number = static_cast<std::uint32_t>(paths.size());
      options.paths = 2;
      paths.push_back(std::make_unique<storage::Path>(options, sys::faulty(sys::make_ring, faults[paths.size()])));
    }
    return make_path_bank(kSizes, staging, std::move(paths));
  }
};

std::vector<std::size_t> all_groups() {
  std::vector<std::size_t> groups(kSizes.size());
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i] = i;
  return groups;
}

std::span<std::byte> bytes_of(std::size_t group, std::byte* memory) {
  return {memory, kSizes[group]};
}

/// What a bank must hold: by group the seed of its filling, 0: zeros.
class Model {
 public:
  void pass(GroupBank& bank, const std::vector<std::size_t>& groups, bool keep) {
    std::vector<std::size_t> seen;
    bank.pass(groups, keep, [&](std::size_t group, std::byte* memory) {
      seen.push_back(group);
      EXPECT_TRUE(holds(group, memory)) << "group " << group;
      if (!keep) return;
      seeds_[group] = ++last_;
      storage::testing::fill(bytes_of(group, memory), last_);
    });
    EXPECT_EQ(seen, groups);
  }

 private:
  bool holds(std::size_t group, std::byte* memory) const {
    const auto bytes = bytes_of(group, memory);
    if (seeds_[group] != 0) return storage::testing::is_filled(bytes, seeds_[group]);
    return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  }

  std::vector<std::uint64_t> seeds_ = std::vector<std::uint64_t>(kSizes.size());
  std::uint64_t last_ = 0;
};

void pass_at_random(GroupBank& bank) {
  std::mt19937 random(7);
  Model model;
  for (int pass = 0; pass < 40; ++pass) {
    auto groups = all_groups();
    std::ranges::shuffle(groups, random);
    groups.resize(random() % (groups.size() + 1));
    model.pass(bank, groups, random() % 3 != 0);
  }
  model.pass(bank, all_groups(), false);
}

TEST(GroupBank, InMemoryHoldsWhatWasKept) {
  pass_at_random(*make_memory_bank(kSizes));
}

TEST(GroupBank, OnPathsHoldsWhatWasKept) {
  Drives drives;
  pass_at_random(*drives.bank());
}

TEST(GroupBank, AWindowLargerThanAllOfItWorks) {
  Drives drives;
  pass_at_random(*drives.bank(400 * MiB));
}

TEST(GroupBank, AWorkThatThrowsLeavesTheOthersAsTheyWere) {
  Drives drives;
  const auto bank = drives.bank();
  Model model;
  model.pass(*bank, all_groups(), true);
  const auto groups = all_groups();
  EXPECT_THROW(bank->pass(groups, false,
                          [](std::size_t group, std::byte*) {
                            if (group == 2) throw std::runtime_error("no");
                          }),
               std::runtime_error);
  model.pass(*bank, all_groups(), false);
}

TEST(GroupBank, AReadThatFailsIsThrownAndTheNextPassWorks) {
  Drives drives;
  const auto bank = drives.bank();
  Model model;
  model.pass(*bank, all_groups(), true);
  for (const auto& faults : drives.faults) {
    for (Bytes at = 0; at < 64 * MiB; at += MiB) {
      faults->fail(sys::Operation::read, storage::testing::kFirstExtent + at, EIO);
    }
  }
  const auto groups = all_groups();
  try {
    bank->pass(groups, false, [](std::size_t, std::byte*) {});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("optimizer state"), std::string::npos) << error.what();
  }
  // Each place fails once; then they are well again.
  for (int attempt = 0; attempt < 64; ++attempt) {
    try {
      bank->pass(groups, false, [](std::size_t, std::byte*) {});
      break;
    } catch (const Error&) {
    }
  }
  model.pass(*bank, all_groups(), false);
}

TEST(GroupBank, TheVolumesGoWithIt) {
  Drives drives;
  {
    const auto bank = drives.bank();
    EXPECT_FALSE(std::filesystem::is_empty(drives.first.path()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(drives.first.path()));
  EXPECT_TRUE(std::filesystem::is_empty(drives.second.path()));
}

}  // namespace
}  // namespace spillway::execute
