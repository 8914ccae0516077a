// The contract of a path, against every ring and every place it can stand on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "tests/needs.h"
#include "tests/storage/allocations.h"
#include "tests/storage/fixture.h"
#include "tests/sys/loop_device.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT

struct PathKind {
  const char* name;
  sys::RingFactory factory;
  bool device = false;  ///< on a block device
};

void PrintTo(const PathKind& kind, std::ostream* out) {
  *out << kind.name;
}

class PathContract : public ::testing::TestWithParam<PathKind> {
 protected:
  void SetUp() override {
    if (GetParam().device) {
      loop_.emplace(directory_.path(), 33 * MiB, 4096);
      REQUIRE_LOOP_DEVICE(*loop_);
    }
    open(options());
  }

  /// The path has 32 MiB.
  [[nodiscard]] PathOptions options() const {
    auto out = options_in(directory_.path());
    if (loop_) {
      out.directory.clear();
      out.device = loop_->path();
    }
    return out;
  }
  void open(const PathOptions& options) {
    path_.reset();
    try {
      path_ = std::make_unique<Path>(options, GetParam().factory);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      SPILLWAY_NEEDS(uring, false, error.what());
    }
  }
  void write(std::span<std::byte> memory, Bytes offset) { path_->run(transfer_of(Direction::write, memory, offset)); }
  void read(std::span<std::byte> memory, Bytes offset, std::string_view what = "") {
    path_->run(transfer_of(Direction::read, memory, offset, what));
  }
  /// Changes one byte of the volume through another descriptor.
  void flip(Bytes file_offset) const {
    const int fd = ::open(path_->volume().c_str(), O_RDWR);
    std::byte byte{};
    ASSERT_EQ(::pread(fd, &byte, 1, static_cast<off_t>(file_offset)), 1);
    byte ^= std::byte{1};
    ASSERT_EQ(::pwrite(fd, &byte, 1, static_cast<off_t>(file_offset)), 1);
    ASSERT_EQ(::fsync(fd), 0);
    ::close(fd);
  }

  TemporaryDirectory directory_;
  std::optional<spillway::testing::LoopDevice> loop_;
  sys::Mapping arena_{32 * MiB};
  std::unique_ptr<Path> path_;
};

TEST_P(PathContract, ReturnsWhatWasWrittenAtEverySize) {
  std::uint64_t seed = 0;
  for (const Bytes size : {4 * KiB, 1 * MiB - 4 * KiB, 1 * MiB, 1 * MiB + 4 * KiB, 3 * MiB + 512 * KiB, 24 * MiB}) {
    const auto memory = arena_.span().first(size);
    fill(memory, ++seed);
    write(memory, 2 * MiB);
    clear(memory);
    read(memory, 2 * MiB);
    EXPECT_TRUE(is_filled(memory, seed)) << size;
  }
}

TEST_P(PathContract, ManyTransfersAtOnceKeepApart) {
  constexpr std::size_t kTransfers = 32;
  Listener listener;
  for (const Direction direction : {Direction::write, Direction::read}) {
    for (std::size_t i = 0; i < kTransfers; ++i) {
      const auto memory = arena_.span().subspan(i * MiB, 1 * MiB - (i % 3) * 4 * KiB);
      direction == Direction::write ? fill(memory, i) : clear(memory);
      auto transfer = transfer_of(direction, memory, (kTransfers - 1 - i) * MiB);
      transfer.deadline = i % 5;
      listener.attach(transfer, i);
      path_->start(transfer);
    }
    path_->drain();
  }
  EXPECT_EQ(listener.ended().size(), 2 * kTransfers);
  EXPECT_TRUE(listener.errors().empty());
  for (std::size_t i = 0; i < kTransfers; ++i) {
    EXPECT_TRUE(is_filled(arena_.span().subspan(i * MiB, 1 * MiB - (i % 3) * 4 * KiB), i)) << i;
  }
}

TEST_P(PathContract, ServesSeveralThreadsAtOnce) {
  constexpr std::size_t kThreads = 4;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      const auto memory = arena_.span().subspan(t * 8 * MiB, 3 * MiB);
      for (int round = 0; round < 12; ++round) {
        const std::uint64_t seed = random();
        const Bytes offset = t * 8 * MiB + (random() % 5) * MiB;
        fill(memory, seed);
        write(memory, offset);
        clear(memory);
        read(memory, offset);
        if (!is_filled(memory, seed)) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

/// What a durable step does, from several threads: data, its mark into a record, a flush, both read again.
TEST_P(PathContract, RecordsAndFlushesGoBetweenTransfers) {
  auto with_records = options();
  with_records.capacity = 16 * MiB;
  with_records.metadata = 1 * MiB;
  open(with_records);
  constexpr std::size_t kThreads = 3;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto data = arena_.span().subspan(t * 4 * MiB, 2 * MiB);
      const auto record = arena_.span().subspan(t * 4 * MiB + 3 * MiB, 4 * KiB);
      auto transfer = transfer_of(Direction::write, record, t * 4 * KiB);
      transfer.area = Area::metadata;
      for (std::uint64_t round = 0; round < 8; ++round) {
        fill(data, t * 100 + round);
        write(data, t * 4 * MiB);
        const PieceMark mark = path_->mark(t * 4 * MiB + 1 * MiB);
        std::memcpy(record.data(), &mark, sizeof mark);
        transfer.direction = Direction::write;
        path_->run(transfer);
        sync(*path_);
        clear(data);
        clear(record);
        read(data, t * 4 * MiB);
        transfer.direction = Direction::read;
        path_->run(transfer);
        const bool same = std::memcmp(record.data(), &mark, sizeof mark) == 0;
        if (!same || !is_filled(data, t * 100 + round)) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(path_->counters().syncs, 8U);
}

TEST_P(PathContract, FlushesAllocateNothing) {
  std::atomic<int> ended = 0;
  const auto ask = [&] {
    path_->sync(
        [](void* context, std::uint64_t, const std::exception_ptr& error) noexcept {
          if (!error) static_cast<std::atomic<int>*>(context)->fetch_add(1);
        },
        &ended, 0);
  };
  ask();
  path_->drain();
  const auto before = allocations();
  for (int i = 0; i < 100; ++i) ask();
  path_->drain();
  if (!std::string_view(GetParam().name).starts_with("faulty")) {
    EXPECT_EQ(allocations(), before);
  }
  EXPECT_EQ(ended, 101);
}

TEST_P(PathContract, RegisteredMemoryAndOtherMemoryBothWork) {
  const auto registered = arena_.span().first(8 * MiB);
  EXPECT_TRUE(path_->register_memory(registered)) << path_->notice();
  for (const auto memory : {registered.first(5 * MiB), arena_.span().subspan(6 * MiB, 4 * MiB)}) {
    fill(memory, 3);
    write(memory, 0);
    clear(memory);
    read(memory, 0);
    EXPECT_TRUE(is_filled(memory, 3));
  }
}

TEST_P(PathContract, CountsBytesOfEachDirection) {
  const auto memory = arena_.span().first(3 * MiB);
  write(memory, 0);
  read(memory, 0);
  read(memory, 0);
  const Counters counters = path_->counters();
  EXPECT_EQ(counters.written, 3 * MiB);
  EXPECT_EQ(counters.read, 6 * MiB);
  EXPECT_GT(counters.read_seconds, 0);
  EXPECT_GT(counters.write_seconds, 0);
  EXPECT_LE(std::max(counters.read_seconds, counters.write_seconds), counters.busy_seconds);
}

TEST_P(PathContract, FindsAFlippedByte) {
  const auto memory = arena_.span().first(4 * MiB);
  write(memory, 0);
  flip(kFirstExtent + 2 * MiB + 12345);
  EXPECT_ERROR(read(memory, 0, "exp_avg of layer 3"), ErrorCode::corrupt, "exp_avg of layer 3");
  EXPECT_ERROR(read(memory, 0), ErrorCode::corrupt, text("at byte ", kFirstExtent + 2 * MiB));
  EXPECT_ERROR(read(memory, 0), ErrorCode::corrupt, path_->volume().string());
  flip(kFirstExtent + 2 * MiB + 12345);
  read(memory, 0);
}

TEST_P(PathContract, FindsAPieceAtTheWrongPlace) {
  const auto memory = arena_.span().first(1 * MiB);
  write(memory, 0);
  const auto other = arena_.span().subspan(1 * MiB, 1 * MiB);
  fill(other, 1);
  write(other, 1 * MiB);
  const int fd = ::open(path_->volume().c_str(), O_RDWR);
  ASSERT_EQ(::pwrite(fd, memory.data(), memory.size(), static_cast<off_t>(kFirstExtent + 1 * MiB)),
            static_cast<ssize_t>(memory.size()));
  ::fsync(fd);
  ::close(fd);
  EXPECT_ERROR(read(other, 1 * MiB), ErrorCode::corrupt, "not what was written");
}

TEST_P(PathContract, WithoutChecksumsDamageIsNotLookedFor) {
  auto unchecked = options();
  unchecked.checksums = false;
  open(unchecked);
  const auto memory = arena_.span().first(1 * MiB);
  fill(memory, 1);
  write(memory, 0);
  flip(kFirstExtent);
  read(memory, 0);
  EXPECT_FALSE(is_filled(memory, 1));
}

TEST_P(PathContract, RefusesToReadWhatWasNotWritten) {
  const auto memory = arena_.span().first(2 * MiB);
  EXPECT_ERROR(read(memory, 0, "grad"), ErrorCode::internal, "grad");
  write(memory.first(1 * MiB + 4 * KiB), 0);
  EXPECT_ERROR(read(memory, 0), ErrorCode::internal, "where 4096 bytes were written");
  read(memory.first(1 * MiB + 4 * KiB), 0);
}

TEST_P(PathContract, RefusesMalformedTransfers) {
  const auto memory = arena_.span();
  auto good = transfer_of(Direction::write, memory.first(4 * KiB), 0, "moments");
  Listener listener;
  listener.attach(good, 0);
  auto bad = good;
  bad.bytes = 100;
  EXPECT_ERROR(path_->start(bad), ErrorCode::internal, "moments");
  bad.bytes = 0;
  EXPECT_ERROR(path_->start(bad), ErrorCode::internal, "length");
  bad = good;
  bad.memory += 512;
  EXPECT_ERROR(path_->start(bad), ErrorCode::internal, "memory");
  bad.memory = nullptr;
  EXPECT_ERROR(path_->start(bad), ErrorCode::internal, "memory");
  bad = good;
  bad.offset = 4 * KiB;
  EXPECT_ERROR(path_->start(bad), ErrorCode::internal, "offset");
  bad.offset = 32 * MiB;
  EXPECT_ERROR(path_->start(bad), ErrorCode::internal, "capacity");
  bad.offset = Bytes{1} << 63;
  EXPECT_ERROR(path_->start(bad), ErrorCode::internal, "capacity");
  bad = good;
  bad.done = nullptr;
  EXPECT_ERROR(path_->start(bad), ErrorCode::internal, "told");
  path_->drain();
  EXPECT_TRUE(listener.ended().empty());
}

TEST_P(PathContract, AllocatesUntilItIsFull) {
  EXPECT_EQ(path_->allocate(1), 0U);
  EXPECT_EQ(path_->allocate(3 * MiB), 1 * MiB);
  EXPECT_EQ(path_->allocate(28 * MiB), 4 * MiB);
  EXPECT_ERROR(path_->allocate(1), ErrorCode::does_not_fit, "0 B of its 32.0 MiB are left");
}

/// Rewrites and rereads one extent, each from the end of the one before.
struct Chain {
  Path* path;
  Transfer transfer;
  int left;
  std::thread::id thread;
  bool same_thread = true;
  std::uint64_t allocations_before = 0;
  std::uint64_t allocations_after = 0;

  static void next(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
    auto& self = *static_cast<Chain*>(context);
    const auto here = std::this_thread::get_id();
    if (self.thread == std::thread::id()) self.thread = here;
    self.same_thread = self.same_thread && !error && self.thread == here;
    self.allocations_after = allocations();
    if (self.left == 200) self.allocations_before = self.allocations_after;
    if (--self.left < 0) return;
    self.transfer.direction = self.left % 2 == 0 ? Direction::write : Direction::read;
    self.path->start(self.transfer);
  }
};

TEST_P(PathContract, TransfersStartFromTheEndOfOthersWithoutAllocation) {
  Chain chain{path_.get(), transfer_of(Direction::write, arena_.span().first(2 * MiB), 0), 220, {}};
  chain.transfer.done = Chain::next;
  chain.transfer.context = &chain;
  path_->start(chain.transfer);
  path_->drain();
  EXPECT_EQ(chain.left, -1);
  EXPECT_TRUE(chain.same_thread);
  EXPECT_NE(chain.thread, std::this_thread::get_id());
  if (std::string_view(GetParam().name).starts_with("faulty")) return;  // the fake keeps a diary
  EXPECT_EQ(chain.allocations_after, chain.allocations_before);
}

TEST_P(PathContract, ManyStartedAtOnceAllocateNothing) {
  const auto memory = arena_.span().first(4 * KiB);
  write(memory, 0);
  std::atomic<int> ended = 0;
  auto transfer = transfer_of(Direction::read, memory, 0);
  transfer.done = [](void* context, std::uint64_t, const std::exception_ptr& error) noexcept {
    if (!error) static_cast<std::atomic<int>*>(context)->fetch_add(1);
  };
  transfer.context = &ended;
  const auto before = allocations();
  for (std::size_t i = 0; i < 1500; ++i) {
    transfer.memory = arena_.span().data() + i * 4 * KiB;
    path_->start(transfer);
  }
  path_->drain();
  if (!std::string_view(GetParam().name).starts_with("faulty")) {
    EXPECT_EQ(allocations(), before);
  }
  EXPECT_EQ(ended, 1500);
}

TEST_P(PathContract, GrowsBeyondItsReserve) {
  constexpr std::uint64_t kTransfers = 8000;
  write(arena_.span().first(4 * KiB), 0);
  Listener listener;
  for (std::uint64_t i = 0; i < kTransfers; ++i) {
    auto transfer = transfer_of(Direction::read, arena_.span().subspan(i * 4 * KiB, 4 * KiB), 0);
    listener.attach(transfer, i);
    path_->start(transfer);
  }
  path_->drain();
  EXPECT_EQ(listener.ended().size(), kTransfers);
  EXPECT_TRUE(listener.errors().empty());
}

TEST_P(PathContract, ClosingEndsEveryTransfer) {
  Listener listener;
  for (std::uint64_t i = 0; i < 8; ++i) {
    auto transfer = transfer_of(Direction::write, arena_.span().subspan(i * 4 * MiB, 4 * MiB), i * 4 * MiB);
    listener.attach(transfer, i);
    path_->start(transfer);
  }
  path_.reset();
  EXPECT_EQ(listener.ended().size(), 8U);
  EXPECT_TRUE(listener.errors().empty());
}

TEST_P(PathContract, WaitingOnItsOwnThreadIsRefused) {
  struct Seen {
    Path* path;
    std::span<std::byte> memory;
    bool refused;
  } seen{path_.get(), arena_.span().first(4 * KiB), false};
  auto transfer = transfer_of(Direction::write, seen.memory, 0);
  transfer.context = &seen;
  transfer.done = [](void* context, std::uint64_t, const std::exception_ptr&) noexcept {
    auto& self = *static_cast<Seen*>(context);
    try {
      self.path->run(transfer_of(Direction::read, self.memory, 0));
    } catch (const Error& error) {
      self.refused = error.code() == ErrorCode::internal;
    }
  };
  path_->start(transfer);
  path_->drain();
  EXPECT_TRUE(seen.refused);
}

TEST_P(PathContract, QueueDepthOfOneWorks) {
  auto narrow = options();
  narrow.queue_depth = 1;
  open(narrow);
  const auto memory = arena_.span().first(5 * MiB);
  fill(memory, 8);
  write(memory, 0);
  clear(memory);
  read(memory, 0);
  EXPECT_TRUE(is_filled(memory, 8));
}

TEST_P(PathContract, GivesItsSpaceBackWhenAsked) {
  const auto volume = path_->volume();
  EXPECT_TRUE(std::filesystem::exists(volume));
  path_->remove_on_close();
  path_.reset();
  EXPECT_EQ(std::filesystem::exists(volume), loop_.has_value());
  auto another = options();
  another.run = "another";
  open(another);
  EXPECT_EQ(path_->capacity(), 32 * MiB);
}

/// The volume of a path that did not come about is in nobody's way, and a run's own stays.
TEST_P(PathContract, WithoutARingANewVolumeIsGivenBack) {
  const sys::RingFactory none = [](const auto&...) -> std::unique_ptr<sys::Ring> {
    throw Error(ErrorCode::io, "no ring");
  };
  auto reopened = options();
  reopened.reopen = true;
  path_.reset();
  EXPECT_THROW(Path(reopened, none), Error);
  open(reopened);
  path_->remove_on_close();
  path_.reset();
  EXPECT_THROW(Path(options(), none), Error);
  auto another = options();
  another.run = "another";
  open(another);
}

INSTANTIATE_TEST_SUITE_P(
    Rings, PathContract,
    ::testing::Values(PathKind{"io_uring", sys::make_uring}, PathKind{"threads", sys::make_thread_ring},
                      PathKind{"faulty_io_uring", sys::faulty(sys::make_ring, std::make_shared<sys::Faults>())},
                      PathKind{"io_uring_on_a_device", sys::make_uring, true},
                      PathKind{"threads_on_a_device", sys::make_thread_ring, true}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace spillway::storage
