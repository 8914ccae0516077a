// A manifest that was written is read again, or refused with its file's name.
#include "spillway/execute/manifest_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using test::Planned;

/// A checkpoint of a run, in planned.where().
class ManifestFile : public ::testing::Test {
 protected:
  ManifestFile() {
    execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
    test::fill(run, planned);
    run.save_manifest(planned.where());
  }
  /// Goes back to it.
  void open() {
    const execute::Run run(planned.run_plan(), planned.volumes(), 1, {.reopen = true, .checkpoint = planned.where()});
  }

  const Planned planned;
  const std::filesystem::path file = planned.where() / kManifestName;
};

TEST_F(ManifestFile, IsGoneBackTo) {
  EXPECT_NO_THROW(open());
}

TEST_F(ManifestFile, IsNamedWhenItIsDamagedOrMissing) {
  std::ifstream in(file, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  bytes[bytes.size() / 2] = static_cast<char>(~bytes[bytes.size() / 2]);
  std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  EXPECT_ERROR(open(), ErrorCode::corrupt, file.string());
  std::filesystem::remove(file);
  EXPECT_ERROR(open(), ErrorCode::bad_input, file.string());
}

TEST_F(ManifestFile, IsNotThereWhenItCouldNotBeWritten) {
  const std::vector<std::byte> bytes(100);
  EXPECT_ANY_THROW(write_manifest(planned.where() / "missing", bytes));
  EXPECT_FALSE(std::filesystem::exists(planned.where() / "missing"));
  write_manifest(planned.where(), bytes);
  EXPECT_EQ(std::filesystem::file_size(file), bytes.size());
  write_manifest(planned.where(), bytes, {.size = 4, .rank = 3});
  EXPECT_TRUE(std::filesystem::exists(planned.where() / "manifest.shard-3.bin"));
}

}  // namespace
}  // namespace spillway::execute
