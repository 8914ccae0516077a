// Copies to a device and from it: the bytes are there when they are said to be, and urgent ones overtake.
#include "spillway/execute/copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "spillway/device/simulated.h"
#include "spillway/storage/waiter.h"
#include "spillway/sys/nodes.h"
#include "spillway/sys/numa.h"

namespace spillway::execute {
namespace {

constexpr Bytes kBytes = 4096;

/// Tokens in the order in which their copies ended. Whoever tells of an end waits while the gate is closed.
class Ends {
 public:
  static void done(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept {
    auto& self = *static_cast<Ends*>(context);
    std::unique_lock lock(self.mutex_);
    self.failed_ = self.failed_ || error;
    self.tokens_.push_back(token);
    self.changed_.notify_all();
    self.changed_.wait(lock, [&] { return self.open_; });
  }
  std::vector<std::uint64_t> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tokens_.size() >= count; });
    return tokens_;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] bool failed() {
    const std::lock_guard lock(mutex_);
    return failed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> tokens_;
  bool open_ = false, failed_ = false;
};

class CopyLaneTest : public ::testing::Test {
 protected:
  CopyLaneTest() : device_(device::make_simulated({.memory = MiB})) { device_->allocate(16 * kBytes); }

  void run(CopyLane& lane, std::byte* to, const std::byte* from) {
    storage::Waiter waiter;
    lane.start({.to = to, .from = from, .bytes = kBytes, .done = &storage::Waiter::done, .context = &waiter});
    waiter.wait();
  }

  const std::unique_ptr<device::Simulated> device_;
};

TEST_F(CopyLaneTest, TheBytesAreThereWhenACopyHasEnded) {
  CopyLane up(*device_, device::Direction::to_device), down(*device_, device::Direction::from_device);
  const std::vector<std::byte> out(kBytes, std::byte{7});
  std::vector<std::byte> in(kBytes);
  run(up, device_->memory().data(), out.data());
  run(down, in.data(), device_->memory().data());
  EXPECT_EQ(in, out);
  EXPECT_EQ(device_->copied(device::Direction::to_device), kBytes);
  EXPECT_EQ(device_->copied(device::Direction::from_device), kBytes);
}

TEST_F(CopyLaneTest, OfThoseThatWaitTheEarliestDeadlineIsNext) {
  const std::vector<std::byte> from(kBytes);
  Ends ends;
  {
    CopyLane up(*device_, device::Direction::to_device);
    const auto start = [&](std::uint64_t deadline) {
      up.start({.to = device_->memory().data() + deadline * kBytes,
                .from = from.data(),
                .bytes = kBytes,
                .deadline = deadline,
                .done = &Ends::done,
                .context = &ends,
                .token = deadline});
    };
    start(0);
    static_cast<void>(ends.wait_for(1));  // the lane's thread is at the gate, while the others come
    for (const std::uint64_t deadline : {9, 3, 7, 1}) start(deadline);
    ends.open();
    EXPECT_EQ(ends.wait_for(5), (std::vector<std::uint64_t>{0, 1, 3, 7, 9}));
  }
  EXPECT_FALSE(ends.failed());
}

/// On a machine with one node these are all CPUs.
TEST(CopyLaneThread, StaysOnTheCpusOfTheDevicesNode) {
  const auto nodes = sys::nodes();
  const auto node = std::ranges::find_if(nodes.rbegin(), nodes.rend(), [](const auto& it) { return !it.cpus.empty(); });
  ASSERT_NE(node, nodes.rend());
  const auto device = device::make_simulated({.memory = MiB, .node = node->id});
  device->allocate(kBytes);
  std::vector<std::byte> from(kBytes);
  struct Seen {
    std::vector<unsigned> cpus;
    storage::Waiter waiter;
  } seen;
  CopyLane up(*device, device::Direction::to_device);
  up.start({.to = device->memory().data(),
            .from = from.data(),
            .bytes = kBytes,
            .done =
                [](void* context, std::uint64_t token, const std::exception_ptr& error) noexcept {
                  auto& it = *static_cast<Seen*>(context);
                  it.cpus = sys::thread_affinity();
                  storage::Waiter::done(&it.waiter, token, error);
                },
            .context = &seen});
  seen.waiter.wait();
  std::vector<unsigned> expected;
  std::ranges::set_intersection(sys::thread_affinity(), node->cpus, std::back_inserter(expected));
  EXPECT_EQ(seen.cpus, expected.empty() ? sys::thread_affinity() : expected);
}

TEST_F(CopyLaneTest, TheFrontIsWhatTheLaneWaitsFor) {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  const auto passes = device_->make_stream();
  const auto after = device_->make_event();
  device_->call(passes, [&] {  // a pass that does not end
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return open; });
  });
  device_->record(after, passes);
  const std::vector<std::byte> from(kBytes);
  Ends ends;
  ends.open();
  CopyLane up(*device_, device::Direction::to_device);
  EXPECT_EQ(up.front().under_way, 0U);
  for (plan::Index task = 7; task < 9; ++task) {
    up.start({.to = device_->memory().data(),
              .from = from.data(),
              .bytes = kBytes,
              .after = after,
              .done = &Ends::done,
              .context = &ends,
              .task = task});
  }
  while (up.front().under_way < 2) std::this_thread::yield();
  EXPECT_EQ(up.front().task, 7U);
  EXPECT_EQ(up.front().bytes, kBytes);
  const auto before = up.front().seconds;
  EXPECT_GE(up.front().seconds, before);
  {
    const std::lock_guard lock(mutex);
    open = true;
  }
  changed.notify_all();
  static_cast<void>(ends.wait_for(2));
  while (up.front().under_way > 0) std::this_thread::yield();
  EXPECT_EQ(up.front().seconds, 0);
  EXPECT_FALSE(ends.failed());
}

}  // namespace
}  // namespace spillway::execute
