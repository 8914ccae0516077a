// Tasks of the network begin in the order of the schedule, whenever what they wait for has ended.
#include "spillway/execute/network_lane.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "spillway/base/error.h"
#include "tests/execute/lanes.h"

namespace spillway::execute {
namespace {

class NetworkLaneTest : public ::testing::Test, public NetworkWork {
 protected:
  static plan::Schedule schedule() {
    plan::Schedule out;
    out.tasks.resize(4);
    for (plan::Index t = 0; t < 4; ++t) out.tasks[t].what.index = t;
    out.network = {2, 0, 3, 1};
    return out;
  }
  std::vector<network::Message> messages(const plan::Task& task) override {
    begun_.push_back(task.what.index);
    if (task.what.index == 3) return {};  // nothing of it is for this process
    return {{.peer = 1, .sends = true, .bytes = byte_}};
  }
  void arrived(const plan::Task& task) override {
    arrived_.push_back(task.what.index);
    adder_ = std::this_thread::get_id();
    if (task.what.index == 1) throw Error(ErrorCode::internal, "no room");
  }
  [[nodiscard]] bool adds(const plan::Task& task) const override { return task.op == plan::Op::scatter; }

  plan::Schedule schedule_ = schedule();
  test::OpenPort port_;
  std::vector<std::byte> byte_{1};
  std::vector<plan::Index> begun_, arrived_, ended_;
  std::thread::id adder_;
  std::string failure_;
  NetworkLane lane_{schedule_, port_, *this, [this](const Start& start, const std::exception_ptr& error) {
                      ended_.push_back(start.task);
                      try {
                        if (error) std::rethrow_exception(error);
                      } catch (const Error& found) {
                        failure_ = found.what();
                      }
                    }};
};

using Tasks = std::vector<plan::Index>;

TEST_F(NetworkLaneTest, BeginsTasksInTheirOrder) {
  EXPECT_TRUE(lane_.ended());
  lane_.begin(5);
  EXPECT_FALSE(lane_.ended());
  lane_.ready({5, 0});
  lane_.start();
  EXPECT_TRUE(begun_.empty()) << "task 2 comes first";
  lane_.skip({4, 2});  // of an instance that is over
  lane_.start();
  EXPECT_TRUE(begun_.empty());
  lane_.ready({5, 2});
  lane_.start();
  EXPECT_EQ(begun_, (Tasks{2, 0}));
  port_.open[1](nullptr);
  EXPECT_EQ(ended_, (Tasks{0}));
  lane_.ready({5, 3});
  lane_.start();
  EXPECT_EQ(arrived_, (Tasks{0, 3})) << "what has no message ends at once";
  lane_.skip({5, 1});
  EXPECT_FALSE(lane_.ended());
  port_.open[0](nullptr);
  EXPECT_TRUE(lane_.ended());
  EXPECT_TRUE(failure_.empty());
}

TEST_F(NetworkLaneTest, KnowsWhatOthersWaitFor) {
  EXPECT_FALSE(lane_.late()) << "nothing has begun";
  lane_.begin(1);
  ASSERT_TRUE(lane_.late());
  EXPECT_EQ(lane_.late()->start.task, 2U);
  EXPECT_GE(lane_.late()->seconds, 0);
  lane_.ready({1, 2});
  EXPECT_FALSE(lane_.late()) << "it begins at once";
  lane_.start();
  EXPECT_FALSE(lane_.late()) << "this process waits for the others";
  lane_.skip({1, 0});
  port_.open[0](nullptr);
  ASSERT_TRUE(lane_.late());
  EXPECT_EQ(lane_.late()->start.task, 3U);
  lane_.halt();
  EXPECT_FALSE(lane_.late());
}

TEST_F(NetworkLaneTest, TellsWhatFailedAndBeginsNoMore) {
  lane_.begin(0);
  for (const plan::Index t : {2U, 0U, 3U}) lane_.skip({0, t});
  lane_.ready({0, 1});
  lane_.start();
  port_.open[0](nullptr);
  EXPECT_NE(failure_.find("no room"), std::string::npos);
  EXPECT_FALSE(lane_.ended());
  lane_.begin(1);
  lane_.halt();
  lane_.ready({1, 2});
  lane_.start();
  EXPECT_EQ(begun_, (Tasks{1}));
}

TEST_F(NetworkLaneTest, AddsUpInAThreadOfItsOwn) {
  schedule_.tasks[2].op = plan::Op::scatter;
  lane_.begin(0);
  for (const plan::Index t : {0U, 1U, 3U}) lane_.skip({0, t});
  lane_.ready({0, 2});
  lane_.start();
  const auto here = std::this_thread::get_id();
  port_.open[0](nullptr);
  lane_.stop();
  EXPECT_TRUE(lane_.ended());
  EXPECT_EQ(arrived_, (Tasks{2}));
  EXPECT_NE(adder_, here);
}

}  // namespace
}  // namespace spillway::execute
