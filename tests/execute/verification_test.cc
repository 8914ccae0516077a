// Every byte that counts is read, and one that is not what was written is named.
#include "spillway/execute/verification.h"

#include <gtest/gtest.h>

#include <fstream>

#include "spillway/storage/path.h"
#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using test::Planned;

void leave_a_step(const Planned& planned) {
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  test::fill(run, planned);
  test::train_step(run, planned);
  run.commit("");
  run.flush();
}

void flip(const std::filesystem::path& file, Bytes offset) {
  std::fstream volume(file, std::ios::binary | std::ios::in | std::ios::out);
  volume.seekg(static_cast<std::streamoff>(offset));
  const auto byte = static_cast<char>(~volume.get());
  volume.seekp(static_cast<std::streamoff>(offset));
  volume.put(byte);
}

TEST(Verification, FindsNothingWhereNothingIsWrong) {
  const Planned planned;
  leave_a_step(planned);
  const auto found = verify(planned.run_plan(), planned.volumes(), {});
  EXPECT_TRUE(found.damage.empty());
  EXPECT_EQ(found.step, 1U);
  Bytes state = 0;
  for (const auto& chunk : planned.layout.chunks()) {
    state += weight_bytes(planned.description.rule(), chunk) + state_bytes(planned.description.rule(), chunk);
  }
  EXPECT_GT(found.bytes, state);
}

TEST(Verification, NamesWhatIsDamaged) {
  const Planned planned;
  leave_a_step(planned);
  const auto data = planned.budget.superblock + planned.budget.records;
  std::size_t named = 0;
  for (Bytes at = data; at < std::filesystem::file_size(planned.volume()); at += 64 * KiB) {
    flip(planned.volume(), at);
    const auto found = verify(planned.run_plan(), planned.volumes(), {});
    for (const auto& it : found.damage) {
      ++named;
      EXPECT_EQ(it.path, "path:0");
      EXPECT_EQ(it.file, planned.volume());
      EXPECT_LE(it.offset, at);
      EXPECT_GT(it.offset + it.bytes, at);
      EXPECT_NE(it.what.find(" of step "), std::string::npos) << it.what;
    }
    flip(planned.volume(), at);
    if (named > 2) break;
  }
  EXPECT_GT(named, 0U);
  EXPECT_TRUE(verify(planned.run_plan(), planned.volumes(), {}).damage.empty());
}

TEST(Verification, TellsOfACheckpointThatCannotBeRead) {
  const Planned planned;
  leave_a_step(planned);
  const auto found = verify(planned.run_plan(), planned.volumes(), {planned.where()});
  ASSERT_EQ(found.damage.size(), 1U);
  EXPECT_EQ(found.damage[0].file, planned.where() / "manifest.bin");
}

TEST(Verification, IsOfARun) {
  const Planned planned;
  EXPECT_ERROR(static_cast<void>(verify(planned.run_plan(), planned.volumes(), {})), ErrorCode::bad_input,
               "holds nothing of the run");
}

}  // namespace
}  // namespace spillway::execute
