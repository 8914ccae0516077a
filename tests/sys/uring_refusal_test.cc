// What the ring does when the kernel does not take its entries at once: the queue of submissions is full, memory is
// short, a signal came. liburing's own functions are replaced by ones that fail as often as they are told to.
#ifdef SPILLWAY_URING
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "spillway/sys/mapping.h"
#include "spillway/sys/ring.h"
#include "tests/needs.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace {

int refusal = 0;       ///< the errno to fail with
unsigned times = 0;    ///< how often still
unsigned refused = 0;  ///< how often it did

bool refuse() {
  if (times == 0) return false;
  --times;
  ++refused;
  return true;
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int io_uring_submit(io_uring* ring) {
  return refuse() ? -refusal : real<int(io_uring*)>("io_uring_submit")(ring);
}

extern "C" int io_uring_submit_and_wait(io_uring* ring, unsigned count) {
  return refuse() ? -refusal : real<int(io_uring*, unsigned)>("io_uring_submit_and_wait")(ring, count);
}

namespace spillway::sys {
namespace {

constexpr std::uint32_t kRefusedPiece = 4 * KiB;

class UringRefusal : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      ring_ = make_uring(file_, 4);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      SPILLWAY_NEEDS(uring, false, error.what());
    }
    refused = 0;
  }
  void TearDown() override { times = 0; }

  void submit_four() {
    for (std::uint64_t i = 0; i < 4; ++i) {
      ring_->submit({Operation::write, memory_.span().data() + i * kRefusedPiece, kRefusedPiece, i * kRefusedPiece, i});
    }
  }

  spillway::testing::TemporaryDirectory directory_;
  File file_{directory_.path() / "file", {.write = true, .create = true}};
  Mapping memory_{4 * kRefusedPiece};
  std::unique_ptr<Ring> ring_;
};

TEST_F(UringRefusal, TriesAgainUntilTheKernelTakesEverything) {
  for (const int errno_value : {EAGAIN, EBUSY, EINTR}) {
    refusal = errno_value;
    times = 5;
    refused = 0;
    submit_four();
    ring_->flush();
    EXPECT_EQ(refused, 5U);
    times = 2;
    std::array<Completion, 4> batch{};
    for (std::size_t count = 0; count < 4;) {
      const std::size_t got = ring_->wait(batch);
      for (std::size_t i = 0; i < got; ++i) EXPECT_EQ(batch.at(i).result, static_cast<int>(kRefusedPiece));
      count += got;
    }
  }
}

TEST_F(UringRefusal, NamesAnErrorThatWillNotPass) {
  submit_four();
  refusal = EBADF;
  times = 1;
  EXPECT_ERROR(ring_->flush(), ErrorCode::io, "EBADF");
  EXPECT_EQ(refused, 1U);
}

}  // namespace
}  // namespace spillway::sys
#endif  // SPILLWAY_URING
