#include "spillway/journal/path_media.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <future>
#include <memory>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/storage/superblock.h"
#include "tests/storage/fixture.h"

namespace spillway::journal {
namespace {

using storage::testing::clear;
using storage::testing::fill;
using storage::testing::is_filled;

/// A path with a metadata area, whose ring a test can spoil.
class PathMediaTest : public ::testing::Test {
 protected:
  PathMediaTest() {
    auto options = storage::testing::options_in(directory_.path(), MiB);
    options.metadata = 4 * MiB;
    path_ = std::make_unique<storage::Path>(options, sys::faulty(sys::make_ring, faults_));
    media_ = std::make_unique<PathMedia>(std::vector{path_.get()});
  }

  /// Waits for the end of a call that `begin` starts with a Done; the error, or null.
  template <class Begin>
  static std::exception_ptr ended(const Begin& begin) {
    std::promise<std::exception_ptr> end;
    begin([&](std::exception_ptr error) { end.set_value(std::move(error)); });
    return end.get_future().get();
  }
  std::exception_ptr write(Bytes offset, std::span<const std::byte> bytes) {
    return ended([&](Media::Done done) { media_->write(0, offset, bytes, std::move(done)); });
  }

  spillway::testing::TemporaryDirectory directory_;
  std::shared_ptr<sys::Faults> faults_ = std::make_shared<sys::Faults>();
  std::unique_ptr<storage::Path> path_;
  std::unique_ptr<PathMedia> media_;
  sys::Mapping memory_{3 * MiB};
};

TEST_F(PathMediaTest, ReadsWhatWasWritten) {
  const auto record = memory_.span().first(8 * KiB);
  fill(record, 1);
  EXPECT_EQ(write(2 * MiB - 4 * KiB, record), nullptr);
  clear(record);
  media_->read(0, 2 * MiB - 4 * KiB, record);
  EXPECT_TRUE(is_filled(record, 1));
}

TEST_F(PathMediaTest, ReadsMoreThanATransferMoves) {
  const auto all = memory_.span();
  fill(all, 2);
  for (Bytes at = 0; at < all.size(); at += MiB) EXPECT_EQ(write(4 * KiB + at, all.subspan(at, MiB)), nullptr);
  clear(all);
  media_->read(0, 4 * KiB, all);
  EXPECT_TRUE(is_filled(all, 2));
}

TEST_F(PathMediaTest, AFailedWriteIsToldWithItsError) {
  faults_->fail(sys::Operation::write, storage::kSuperblockExtent + 4 * KiB, EIO);
  const auto error = write(4 * KiB, memory_.span().first(4 * KiB));
  ASSERT_NE(error, nullptr);
  EXPECT_ERROR(std::rethrow_exception(error), ErrorCode::io, "a record");
  EXPECT_EQ(write(4 * KiB, memory_.span().first(4 * KiB)), nullptr) << "the next one is another matter";
}

TEST_F(PathMediaTest, AWriteThatCannotStartIsToldLikeAnyOther) {
  const auto error = write(4 * MiB, memory_.span().first(4 * KiB));
  ASSERT_NE(error, nullptr);
  EXPECT_ERROR(std::rethrow_exception(error), ErrorCode::internal, "beyond the volume's metadata");
}

TEST_F(PathMediaTest, AFlushIsToldAndSoIsItsFailure) {
  const auto flush = [&] { return ended([&](Media::Done done) { media_->sync(0, std::move(done)); }); };
  EXPECT_EQ(flush(), nullptr);
  faults_->fail(sys::Operation::sync, 0, EIO);
  EXPECT_NE(flush(), nullptr);
}

TEST_F(PathMediaTest, AReadThatFailsThrows) {
  faults_->fail(sys::Operation::read, storage::kSuperblockExtent, EIO);
  EXPECT_ERROR(media_->read(0, 0, memory_.span().first(4 * KiB)), ErrorCode::io, "records");
}

}  // namespace
}  // namespace spillway::journal
