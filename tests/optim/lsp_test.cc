// The auxiliary fields of a subspace lie one behind the other, and files hold all of them.
#include "spillway/optim/lsp.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace spillway::optim {
namespace {

constexpr Reduced kMatrix{.rows = 96, .columns = 64, .rank = 32, .nonzeros = 4};

TEST(Lsp, ItsPartsMakeUpTheAuxiliaryFields) {
  Bytes next = 0;
  for (const auto& part : lsp.parts(kMatrix)) {
    EXPECT_EQ(part.first, next);
    next += part.bytes;
    Bytes bytes = part.dtype == std::string("F64") ? sizeof(double) : sizeof(float);
    for (const auto size : part.shape) bytes *= static_cast<Bytes>(size);
    EXPECT_EQ(part.bytes, bytes);
  }
  EXPECT_EQ(next, kMatrix.auxiliary_bytes());
  EXPECT_EQ(lsp.parts(kMatrix).front().bytes, lsp.record);
  EXPECT_EQ(projector_fields(kMatrix).p, lsp.record);
  EXPECT_EQ(kMatrix.refitted_bytes(), projector_fields(kMatrix).bytes - lsp.record);
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
}

}  // namespace
}  // namespace spillway::optim
