// Two paths on one device: what each may have in flight while the other wants some, too.
#include <gtest/gtest.h>

#include <fstream>

#include "spillway/storage/share_layout.h"
#include "tests/storage/fixture.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT

constexpr Bytes kBudget = 8 * MiB;

/// A path whose completions wait behind a gate. Stands for one process: sharing knows no difference.
class User {
 public:
  User(const std::filesystem::path& directory, const ShareOptions& share)
      : path_(options(directory, share), sys::faulty(sys::make_ring, faults_)) {}

  void start(Bytes pieces) {
    auto transfer = transfer_of(Direction::write, arena_.span().first(pieces * MiB), 0);
    listener_.attach(transfer, 0);
    path_.start(transfer);
  }
  sys::Faults& faults() { return *faults_; }
  Path& path() { return path_; }
  [[nodiscard]] std::size_t errors() const { return listener_.errors().size(); }

 private:
  static PathOptions options(const std::filesystem::path& directory, const ShareOptions& share) {
    auto out = options_in(directory);
    out.share = share;
    return out;
  }

  sys::Mapping arena_{32 * MiB};
  Listener listener_;
  std::shared_ptr<sys::Faults> faults_ = std::make_shared<sys::Faults>();
  Path path_;
};

class PathShare : public ::testing::Test {
 protected:
  [[nodiscard]] ShareOptions share() const {
    return {.read_budget = kBudget, .write_budget = kBudget, .directory = table_.path()};
  }
  TemporaryDirectory table_, first_directory_, second_directory_;
};

TEST_F(PathShare, AloneOnlyItsDepthLimitsIt) {
  User user(first_directory_.path(), share());
  EXPECT_EQ(user.path().notice().find("sharing"), std::string::npos) << user.path().notice();
  user.faults().hold();
  user.start(20);
  user.faults().await_held(PathOptions{}.queue_depth);
  EXPECT_EQ(user.faults().submitted().size(), PathOptions{}.queue_depth);
  user.faults().release();
  user.path().drain();
  EXPECT_EQ(user.faults().submitted().size(), 20U);
  EXPECT_EQ(user.errors(), 0U);
}

TEST_F(PathShare, OneThatComesLaterGetsItsPartAndTheFirstGoesOnWithIts) {
  User first(first_directory_.path(), share());
  User second(second_directory_.path(), share());
  first.faults().hold();
  first.start(20);
  first.faults().await_held(kBudget / MiB);
  second.faults().hold();
  second.start(20);
  second.faults().await_held(kBudget / MiB / 2);  // its equal part, whatever the first one holds
  EXPECT_EQ(second.faults().submitted().size(), kBudget / MiB / 2);
  first.faults().release();
  first.path().drain();
  second.faults().release();
  second.path().drain();
  EXPECT_EQ(first.faults().submitted().size() + second.faults().submitted().size(), 40U);
  EXPECT_EQ(first.errors() + second.errors(), 0U);
}

TEST_F(PathShare, WhereItCannotShareItSaysSoAndWorks) {
  const auto file = table_.path() / "file";
  std::ofstream(file) << "no directory";
  User user(first_directory_.path(), {.directory = file});
  EXPECT_NE(user.path().notice().find("not sharing the drive"), std::string::npos) << user.path().notice();
  user.start(4);
  user.path().drain();
  EXPECT_EQ(user.errors(), 0U);
}

/// Found by processes that are stopped at random: the one that was stopped while it joined kept the others out for
/// ever.
TEST_F(PathShare, OneThatWasStoppedWhileItJoinedKeepsNobodyWaiting) {
  User first(first_directory_.path(), share());
  const sys::SharedMemory stopped(std::filesystem::directory_iterator(table_.path())->path());
  ASSERT_TRUE(stopped.try_lock(kShareJoinLock));
  auto impatient = share();
  impatient.patience = std::chrono::milliseconds(10);
  User second(second_directory_.path(), impatient);
  EXPECT_NE(second.path().notice().find("has been locked for 10 ms"), std::string::npos) << second.path().notice();
  second.start(4);
  second.path().drain();
  EXPECT_EQ(second.errors(), 0U);
}

}  // namespace
}  // namespace spillway::storage
