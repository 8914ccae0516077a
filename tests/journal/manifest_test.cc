#include "spillway/journal/manifest.h"

#include <gtest/gtest.h>

#include <vector>

#include "spillway/base/error.h"
#include "tests/journal/samples.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::journal {
namespace {

using testing::kIdentity;
using testing::some_commit;
using testing::some_pieces;

TEST(ManifestTest, ReturnsWhatWentIn) {
  const Manifest in{kIdentity, some_commit(), {{0, 12, some_pieces(3)}, {1, 11, some_pieces(1)}}};
  EXPECT_EQ(decode_manifest(encode(in), kIdentity), in);
  EXPECT_ERROR((void)decode_manifest(encode(in), kIdentity + 1), ErrorCode::bad_input, "another run");
}

TEST(ManifestTest, EveryByteIsGuarded) {
  const std::vector<std::byte> good = encode(Manifest{kIdentity, some_commit(), {{0, 12, some_pieces(3)}}});
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{4};
    EXPECT_ERROR((void)decode_manifest(bad, kIdentity), ErrorCode::corrupt, "not whole");
  }
  EXPECT_ERROR((void)decode_manifest(std::span(good).first(good.size() - 8), kIdentity), ErrorCode::corrupt,
               "not whole");
}

TEST(ManifestTest, AFileThatIsNotThereIsNamed) {
  const spillway::testing::TemporaryDirectory directory;
  EXPECT_ERROR((void)read_manifest_file(directory.path() / "places"), ErrorCode::bad_input, "says where");
}

}  // namespace
}  // namespace spillway::journal
