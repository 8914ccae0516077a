// The auxiliary fields of a subspace lie one behind the other, and files hold all of them.
#include "spillway/optim/lsp.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "spillway/base/error.h"

namespace spillway::optim {
namespace {

constexpr Reduced kMatrix{.rows = 96, .columns = 64, .rank = 32, .nonzeros = 4};
constexpr Reduced kPublished{.rows = 96, .columns = 64, .rank = 32, .nonzeros = 4, .by = &lsp_published};

void expect_parts(const Reduced& it) {
  Bytes next = 0;
  for (const auto& part : it.by->parts(it)) {
    EXPECT_EQ(part.first, next);
    next += part.bytes;
    Bytes bytes = part.dtype == std::string("F64") ? sizeof(double) : sizeof(float);
    for (const auto size : part.shape) bytes *= static_cast<Bytes>(size);
    EXPECT_EQ(part.bytes, bytes);
  }
  EXPECT_EQ(next, it.auxiliary_bytes());
  EXPECT_EQ(it.by->parts(it).front().bytes, lsp.record);
  EXPECT_EQ(projector_fields(it).p.first, lsp.record);
  EXPECT_EQ(it.refitted_bytes(), projector_fields(it).bytes - lsp.record);
}

TEST(Lsp, ItsPartsMakeUpTheAuxiliaryFields) {
  expect_parts(kMatrix);
  expect_parts(kPublished);
}

TEST(Lsp, PublishedProjectorsHaveThePlacesOfTheirValues) {
  const Bytes values = 4 * (96 + 64 + 2 * kernels::kProjectorPad) * sizeof(float);
  EXPECT_EQ(kMatrix.refitted_bytes(), values);
  EXPECT_EQ(kMatrix.device_bytes(), values);
  EXPECT_EQ(kPublished.refitted_bytes(), 2 * values);
  EXPECT_EQ(kPublished.device_bytes(), 2 * values + (2 * 33 + 4 * (96 + 64)) * sizeof(float));
}

TEST(Lsp, AReductionIsFoundByItsWord) {
  EXPECT_EQ(&parse_reduction("subspace"), &lsp);
  EXPECT_EQ(&parse_reduction("published subspace"), &lsp_published);
  EXPECT_THROW(static_cast<void>(parse_reduction("space")), Error);
}

TEST(Lsp, WhatIsNotReducedHasNone) {
  const Reduced none{.rows = 96, .columns = 64};
  EXPECT_FALSE(none.any());
  EXPECT_EQ(none.auxiliary_bytes(), 0U);
  EXPECT_EQ(none.refitted_bytes(), 0U);
}

TEST(Lsp, RefusesRanksThatProjectorsCannotHave) {
  EXPECT_EQ(lsp.refusal(kMatrix), "");
  const std::vector<Reduced> refused{{96, 64, 0, 4}, {96, 64, 32, 0}, {96, 64, 30, 4}, {96, 64, 68, 4}};
  for (const auto& it : refused) {
    EXPECT_NE(lsp.refusal(it).find("lsp_rank"), std::string::npos) << it.rank << ", " << it.nonzeros;
  }
}

TEST(Lsp, ARefitCostsByTheElementsThatItReads) {
  EXPECT_GT(lsp.refit_cost(kMatrix, 2000), lsp.refit_cost(kMatrix, 1000));
  EXPECT_EQ(lsp.refit_work(kMatrix), 96U * 32 * sizeof(float));
  EXPECT_GT(lsp_published.refit_cost(kPublished, 96 * 64), 100 * lsp.refit_cost(kMatrix, 96 * 64)) << "descent";
  EXPECT_GE(lsp_published.refit_work(kPublished), (3 * 96 * 64 + 4 * (96 + 64) * 32) * sizeof(float));
}

}  // namespace
}  // namespace spillway::optim
