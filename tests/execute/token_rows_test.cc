// The rows that a step's tokens have, and whose tokens they are.
#include "spillway/execute/token_rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/plan/models.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

class TokenRowsTest : public ::testing::Test {
 protected:
  TokenRowsTest()
      : description(
            plan::test::describe({.layers = 1, .hidden = 8, .vocabulary = 600, .tokens = 40, .chunk_elements = 2048})) {
    description.virtual_ranks = description.micro_batches = counts.size();
  }
  [[nodiscard]] TokenRows make_rows(const state::World& world) {
    description.world = world;
    TokenRows out(description, layout, 0);
    out.begin(ids, counts);
    return out;
  }

  const std::vector<std::int64_t> ids{500, 7, 7, 300, 500, 9, 7};
  const std::vector<std::uint64_t> counts{2, 1, 3, 1};
  plan::Description description;
  const state::Layout layout = description.layout();
};

using Ids = std::vector<std::int64_t>;
using Places = std::vector<std::uint32_t>;

template <class Out, class Values>
Out copy(const Values& values) {
  return {values.begin(), values.end()};
}

TEST_F(TokenRowsTest, RowsRiseAndHaveTheirTokensInOrder) {
  const auto rows = make_rows({});
  ASSERT_EQ(copy<Ids>(rows.ids()), (Ids{7, 9, 300, 500}));
  EXPECT_EQ(copy<Places>(rows.tokens_of(0)), (Places{1, 2, 6}));
  EXPECT_EQ(copy<Places>(rows.tokens_of(3)), (Places{0, 4}));
  EXPECT_EQ(rows.own_tokens(), ids.size());
  EXPECT_EQ(rows.own_first(), 0U);
  EXPECT_EQ(rows.own_end(), rows.size());
  EXPECT_TRUE(rows.parts().empty());
}

TEST_F(TokenRowsTest, ProcessHasTheTokensOfItsRanks) {
  const auto rows = make_rows({.size = 2, .rank = 1});
  EXPECT_EQ(rows.first_token(), 3U);
  EXPECT_EQ(rows.own_tokens(), 4U);
  EXPECT_EQ(copy<Places>(rows.list_own_tokens(0)), (Places{6}));
  EXPECT_EQ(copy<Places>(rows.list_own_tokens(3)), (Places{4}));
}

TEST_F(TokenRowsTest, EachRowHasOneOwner) {
  std::size_t next = 0;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto rows = make_rows({.size = 3, .rank = rank});
    EXPECT_EQ(rows.own_first(), next);
    next = rows.own_end();
  }
  EXPECT_EQ(next, 4U);
}

TEST_F(TokenRowsTest, PartsOfAllMachinesHaveEachTokenOnce) {
  const auto rows = make_rows({.size = 4, .rank = 2, .local = 2});
  for (std::size_t row = 0; row < rows.size(); ++row) {
    Places tokens;
    for (const auto& part : rows.machine_parts()) {
      const auto of_part = rows.tokens_of(row, part);
      tokens.insert(tokens.end(), of_part.begin(), of_part.end());
    }
    EXPECT_EQ(tokens, copy<Places>(rows.tokens_of(row)));
  }
}

TEST_F(TokenRowsTest, RowsOfAnOwnerAreCountedOnceForEachSubtreeWithTokens) {
  const auto rows = make_rows({.size = 2, .rank = 0});
  for (std::size_t maker = 0; maker < 2; ++maker) {
    std::size_t counted = 0;
    for (std::size_t owner = 0; owner < 2; ++owner) counted += rows.count_rows(rows.machine_parts(), maker, owner);
    std::size_t expected = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      expected += rows.count_parts(rows.machine_parts(), maker, row);
    }
    EXPECT_EQ(counted, expected);
    EXPECT_EQ(counted, maker == 0 ? 2U : 4U);
  }
}

TEST_F(TokenRowsTest, IdOutsideTheTableAndATokenTooManyAreRefused) {
  TokenRows rows(description, layout, 0);
  EXPECT_ERROR(rows.begin(Ids{0, 600}, {}), ErrorCode::bad_input, "token 1 has id 600");
  EXPECT_ERROR(rows.begin(Ids(41, 0), {}), ErrorCode::bad_input, "a step of 41 tokens");
}

}  // namespace
}  // namespace spillway::execute
