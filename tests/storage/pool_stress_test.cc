// Many writers at once on a pool that is nearly full, with a path that fails on the way: every byte is where it should
// be.
#include <atomic>
#include <cerrno>
#include <random>
#include <thread>

#include "tests/storage/pool_fixture.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT

constexpr std::size_t kWriters = 4;
constexpr std::size_t kObjects = 3;  ///< of each writer
constexpr Bytes kLargest = 4 * MiB;
constexpr int kRounds = 60;

/// Writes its objects anew again and again, each to new places before the old ones go, and reads them at any time.
class Writer {
 public:
  Writer(Pool& pool, std::span<std::byte> memory, unsigned seed) : pool_(pool), random_(seed) {
    for (std::size_t i = 0; i < kObjects; ++i) content_.push_back({memory.subspan(i * kLargest, kLargest), 0, {}});
  }

  void work() {
    for (int round = 0; round < kRounds; ++round) {
      Content& content = content_[random_() % kObjects];
      if (content.places.empty() || random_() % 2 == 0) {
        write(content);
      } else {
        read(content);
      }
    }
    for (Content& content : content_) {
      if (content.places.empty()) continue;
      read(content);
      pool_.release(content.places);
    }
  }
  [[nodiscard]] int wrong() const { return wrong_; }

 private:
  struct Content {
    std::span<std::byte> room;
    std::uint64_t seed;
    std::vector<Place> places;
    Bytes bytes = 0;
  };

  void write(Content& content) {
    content.bytes = (1 + random_() % (kLargest / kTransferAlignment)) * kTransferAlignment;
    content.seed = random_();
    Object object(content.room.first(content.bytes));
    fill(object.memory, content.seed);
    auto request = object.request(Direction::write, "an object");
    request.deadline = random_() % 4;
    pool_.run(request);
    pool_.release(std::exchange(content.places, object.places));
  }

  void read(Content& content) {
    Object object(content.room.first(content.bytes));
    object.places = content.places;
    clear(object.memory);
    object.read(pool_, "an object");
    if (!is_filled(object.memory, content.seed)) ++wrong_;
  }

  Pool& pool_;
  std::mt19937 random_;
  std::vector<Content> content_;
  int wrong_ = 0;
};

/// All objects and one new version of each writer's fit exactly the two paths that are left when the third fails, so
/// writes wait for each other all the time and never for ever.
void stress(const sys::RingFactory& ring, bool fault) {
  const Bytes each = kWriters * (kObjects + 1) * kLargest / 2;
  PoolParts parts({each, each, 24 * MiB}, ring);
  const sys::Mapping arena(kWriters * kObjects * kLargest);
  std::atomic<int> scarce = 0;
  PoolOptions options;
  options.needed = 2 * each;
  options.on_scarce = [&] { ++scarce; };
  Pool pool(parts.members(), options);
  if (fault) parts.faults(2).fail(sys::Operation::write, kFirstExtent + 17 * MiB, EIO);
  std::vector<Writer> writers;
  for (unsigned i = 0; i < kWriters; ++i) {
    writers.emplace_back(pool, arena.span().subspan(i * kObjects * kLargest, kObjects * kLargest), i);
  }
  std::vector<std::thread> threads;
  for (Writer& writer : writers) threads.emplace_back([&writer] { writer.work(); });
  for (std::thread& thread : threads) thread.join();
  for (const Writer& writer : writers) EXPECT_EQ(writer.wrong(), 0);
  EXPECT_EQ(pool.outages().size(), fault ? 1U : 0U);
  EXPECT_EQ(pool.waiting(), 0U);
  EXPECT_EQ(pool.free(), fault ? 2 * each : 2 * each + 24 * MiB) << "every place has come back";
}

TEST(PoolStress, ContentsStayRight) {
  stress(sys::make_ring, false);
}
TEST(PoolStress, ContentsStayRightOnThreads) {
  stress(sys::make_thread_ring, false);
}
TEST(PoolStress, ContentsStayRightWhenAPathFails) {
  stress({}, true);
}

}  // namespace
}  // namespace spillway::storage
