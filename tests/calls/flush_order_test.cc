// In which order files are written, flushed and named: what a power cut may leave of them follows from that.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "spillway/execute/manifest_file.h"
#include "spillway/storage/volume.h"
#include "tests/calls/tracer.h"
#include "tests/contract/directory.h"
#include "tests/needs.h"

namespace spillway::calls {
namespace {

using Lines = std::vector<std::string>;

class FlushOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto outcome = traced({}, {}, [] { return 0; });
    SPILLWAY_NEEDS(ptrace, !outcome.untold && outcome.signal == 0, "one process may not watch another here");
  }

  [[nodiscard]] storage::VolumeOptions options(Bytes capacity, bool reopen = false) const {
    storage::VolumeOptions out;
    out.directory = directory_.path();
    out.run = "run";
    out.capacity = capacity;
    out.metadata = MiB;
    out.prewrite = true;
    out.reopen = reopen;
    return out;
  }

  /// What is done to files in the directory meanwhile. Writes that follow each other are one line.
  [[nodiscard]] Lines of(const std::function<void()>& body) const {
    Watch watch;
    watch.under = {directory_.path().string()};
    watch.resources = false;
    watch.rings = false;  // every write is a call
    const auto outcome = traced(
        watch, {},
        [&] {
          body();
          return 0;
        },
        true);
    EXPECT_EQ(outcome.code, 0);
    Lines out;
    for (const Call& call : outcome.log) {
      const auto line = line_of(call);
      if (!line.empty() && (out.empty() || line != "write" || out.back() != line)) out.push_back(line);
    }
    return out;
  }
  [[nodiscard]] Lines of(const storage::VolumeOptions& options) const {
    return of([&] { const storage::Volume made(options); });
  }

  test::Directory directory_;

 private:
  [[nodiscard]] std::string line_of(const Call& call) const {
    const std::filesystem::path path(call.path);
    if (call.name.starts_with("rename")) return "rename";
    if (is_flush(call.name)) return path == directory_.path() ? "flush the directory" : "flush";
    const bool ours = path.filename().string().find("probe") == std::string::npos;
    return ours && (call.name.starts_with("pwrite") || call.name == "write") ? "write" : "";
  }
};

TEST_F(FlushOrder, ANewVolumeIsNamedWhenBothSuperblocksSayThatItsZerosAreThere) {
  EXPECT_EQ(of(options(4 * MiB)),
            (Lines{"write", "flush", "write", "flush", "write", "flush", "rename", "flush the directory"}));
}

TEST_F(FlushOrder, AVolumeThatGrowsSaysSoWhenItsNewZerosAreThere) {
  { const storage::Volume made(options(4 * MiB)); }
  EXPECT_EQ(of(options(6 * MiB, true)), (Lines{"write", "flush", "write", "flush", "write", "flush"}));
}

TEST_F(FlushOrder, AManifestIsFlushed) {
  const std::vector<std::byte> bytes(5000);
  EXPECT_EQ(of([&] { execute::write_manifest(directory_.path(), bytes, {}); }), (Lines{"write", "flush"}));
}

}  // namespace
}  // namespace spillway::calls
