// The contract of a ring, against each ring there is.
#include "spillway/sys/ring.h"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <map>
#include <thread>
#include <vector>

#include "spillway/sys/faulty_ring.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/power_cut.h"
#include "tests/needs.h"
#include "tests/sys/child.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::sys {
namespace {

constexpr unsigned kDepth = 8;
constexpr std::uint32_t kPiece = 16 * KiB;

struct Kind {
  const char* name;
  RingFactory factory;
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

class RingContract : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    try {
      ring_ = GetParam().factory(file_, kDepth);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      SPILLWAY_NEEDS(uring, false, error.what());
    }
    file_.reserve(kDepth * kPiece);
  }

  [[nodiscard]] Piece piece(Operation operation, unsigned index) const {
    return {operation, memory_.span().data() + index * kPiece, kPiece, Bytes{index} * kPiece, 100 + index};
  }

  /// Results by tag, once `count` have come.
  std::map<std::uint64_t, std::int32_t> collect(std::size_t count) {
    std::map<std::uint64_t, std::int32_t> results;
    std::vector<Completion> batch(kDepth);
    while (results.size() < count) {
      const std::size_t got = ring_->wait(batch);
      for (std::size_t i = 0; i < got; ++i) results[batch[i].tag] = batch[i].result;
    }
    return results;
  }

  testing::TemporaryDirectory directory_;
  File file_{directory_.path() / "file", {.write = true, .create = true, .direct = true}};
  Mapping memory_{kDepth * kPiece};
  std::unique_ptr<Ring> ring_;
};

/// Rings that make files durable; not the ring with a power cut, which says itself what is.
class SyncingRing : public RingContract {};

TEST_P(RingContract, MovesEveryPieceOfAFullRing) {
  for (unsigned i = 0; i < kDepth; ++i) {
    std::ranges::fill(memory_.span().subspan(i * kPiece, kPiece), std::byte(i + 1));
    ring_->submit(piece(Operation::write, i));
  }
  for (const auto& [tag, result] : collect(kDepth)) EXPECT_EQ(result, static_cast<int>(kPiece)) << tag;
  std::ranges::fill(memory_.span(), std::byte{0});
  for (unsigned i = 0; i < kDepth; ++i) ring_->submit(piece(Operation::read, i));
  ring_->flush();
  collect(kDepth);
  for (unsigned i = 0; i < kDepth; ++i) {
    EXPECT_EQ(memory_.span()[i * kPiece], std::byte(i + 1));
    EXPECT_EQ(memory_.span()[(i + 1) * kPiece - 1], std::byte(i + 1));
  }
}

TEST_P(RingContract, RegisteredMemoryGivesTheSameBytes) {
  ASSERT_EQ(ring_->register_memory(memory_.span()), "");
  std::ranges::fill(memory_.span().first(kPiece), std::byte{9});
  ring_->submit(piece(Operation::write, 0));
  EXPECT_EQ(collect(1).at(100), static_cast<int>(kPiece));
  const Mapping outside(kPiece);
  ring_->submit({Operation::read, outside.span().data(), kPiece, 0, 5});
  EXPECT_EQ(collect(1).at(5), static_cast<int>(kPiece));
  EXPECT_EQ(outside.span()[kPiece - 1], std::byte{9});
}

TEST_P(RingContract, ReportsAShortReadAtTheEnd) {
  Piece past = piece(Operation::read, 0);
  past.offset = kDepth * kPiece - 4 * KiB;
  ring_->submit(past);
  EXPECT_EQ(collect(1).at(past.tag), static_cast<int>(4 * KiB));
  past.offset = kDepth * kPiece;
  ring_->submit(past);
  EXPECT_EQ(collect(1).at(past.tag), 0);
}

TEST_P(RingContract, ReportsErrno) {
  Piece bad = piece(Operation::read, 0);
  bad.memory = nullptr;
  ring_->submit(bad);
  EXPECT_EQ(collect(1).at(bad.tag), -EFAULT);
}

TEST_P(RingContract, SyncsBetweenTransfers) {
  ring_->submit(piece(Operation::write, 0));
  EXPECT_EQ(collect(1).at(100), static_cast<int>(kPiece));
  ring_->submit({Operation::sync, nullptr, 0, 0, 7});
  ring_->submit(piece(Operation::write, 1));
  const auto results = collect(2);
  EXPECT_EQ(results.at(7), 0);
  EXPECT_EQ(results.at(101), static_cast<int>(kPiece));
}

TEST_P(SyncingRing, ReportsAFailedSync) {
  const File bottomless("/dev/null", {.write = true});  // it has nothing to make durable, and says so
  ring_.reset();
  ring_ = GetParam().factory(bottomless, kDepth);
  ring_->submit({Operation::sync, nullptr, 0, 0, 7});
  EXPECT_EQ(collect(1).at(7), -EINVAL);
  ring_.reset();
}

TEST_P(RingContract, WakesFromAnotherThread) {
  std::vector<Completion> batch(kDepth);
  for (int round = 0; round < 3; ++round) {
    std::thread waker([this] { ring_->wake(); });
    EXPECT_EQ(ring_->wait(batch), 0U);
    waker.join();
  }
}

TEST_P(RingContract, RemembersAWakeUp) {
  ring_->wake();
  std::vector<Completion> batch(kDepth);
  EXPECT_EQ(ring_->wait(batch), 0U);
}

/// Depths at which a full ring and its wake-up fill the submission queue to the last entry, and others.
TEST_P(RingContract, TakesAFullRingRightAfterAWakeUp) {
  for (const unsigned depth : {1U, 3U, 7U, 8U}) {
    ring_.reset();
    ring_ = GetParam().factory(file_, depth);
    std::vector<Completion> batch(depth);
    for (int round = 0; round < 3; ++round) {
      ring_->wake();
      EXPECT_EQ(ring_->wait(batch), 0U);
      for (unsigned i = 0; i < depth; ++i) ring_->submit(piece(Operation::write, i));
      for (const auto& [tag, result] : collect(depth)) EXPECT_EQ(result, static_cast<int>(kPiece)) << tag;
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<Kind>& param) {
  return param.param.name;
}

const auto kSyncing = ::testing::Values(Kind{"io_uring", make_uring}, Kind{"threads", make_thread_ring},
                                        Kind{"faulty_io_uring", faulty(make_uring, std::make_shared<Faults>())},
                                        Kind{"faulty_threads", faulty(make_thread_ring, std::make_shared<Faults>())});
const auto kPowerCut =
    ::testing::Values(Kind{"power_cut_io_uring", power_cut(make_uring, std::make_shared<PowerCut>())},
                      Kind{"power_cut_threads", power_cut(make_thread_ring, std::make_shared<PowerCut>())});

INSTANTIATE_TEST_SUITE_P(Rings, RingContract, kSyncing, name_of);
INSTANTIATE_TEST_SUITE_P(PowerCut, RingContract, kPowerCut, name_of);
INSTANTIATE_TEST_SUITE_P(Rings, SyncingRing, kSyncing, name_of);

/// Makes io_uring_setup fail with EPERM from now on, as container runtimes do. False when that cannot be had.
bool forbid_io_uring() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(code)), code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

TEST(RingFallbackTest, ThreadsServeWhereIoUringIsForbidden) {
  const testing::TemporaryDirectory directory;
  const File file(directory.path() / "file", {.write = true, .create = true});
  const int status = testing::in_child([&] {
    if (!forbid_io_uring()) return testing::kCannotTry;
    try {
      std::ignore = make_uring(file, 4);
      return 1;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported || error.errno_value() != EPERM) return 2;
    }
    return make_ring(file, 4)->name() == "thread pool" ? 0 : 3;
  });
  SPILLWAY_NEEDS(seccomp, status != testing::kCannotTry, "no seccomp filters on this machine");
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace spillway::sys
