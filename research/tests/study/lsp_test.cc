// LSP-Offload, simulated.
#include "research/study/lsp.h"

#include <gtest/gtest.h>

namespace spillway::study {
namespace {

/// The workstation of arXiv 2406.10181.
Hardware workstation() {
  Hardware out{.name = "a card of 24 GiB"};
  out.nodes = {{.capacity = 128 * GiB, .update = 26 * 3.5e9}};
  out.devices = {{.flops = 136e12, .update = 780e9, .to_device = 17.5e9, .from_device = 17.5e9}};
  return out;
}

/// DeepSeek-6.7B, four sequences of 1024 tokens.
LspModel deepseek() {
  return {.layers = 32, .matrices = {{4096, 4096, 4}, {11008, 4096, 2}, {4096, 11008}}, .table = 32256.0 * 4096};
}
constexpr LspWork kWhole{.tokens = 4096}, kInside{.tokens = 4096, .rank = 2048};
constexpr LspDelays kDelays{.process = 1, .apply = 2, .late = 10};

double seconds(LspMethod method, const LspWork& work, const LspDelays& delays = {}) {
  return lsp_step(workstation(), deepseek(), work, method, delays).seconds;
}

TEST(Lsp, TakesAsLongAsPublished) {
  EXPECT_NEAR(seconds(LspMethod::resident, kWhole), 1.634, 0.16);
  EXPECT_NEAR(seconds(LspMethod::zero, kWhole), 4.108, 0.41);
  EXPECT_NEAR(seconds(LspMethod::published, kInside, kDelays), 1.968, 0.19);
}

TEST(Lsp, WithoutDelaysWholeGradientsLeaveNothingBesideAnythingElse) {
  const auto one_by_one = lsp_step(workstation(), deepseek(), kWhole, LspMethod::published);
  const auto machine = workstation().devices.front();
  const double elements = 32 * (4 * 4096.0 * 4096 + 3 * 4096.0 * 11008);
  const auto serial = one_by_one.operations / machine.flops + 4 * elements / machine.from_device +
                      26 * elements / (26 * 3.5e9) + 4 * elements / machine.to_device + 12 * elements / machine.update;
  EXPECT_NEAR(one_by_one.seconds, serial, 0.01 * serial);
  EXPECT_GT(one_by_one.seconds, seconds(LspMethod::zero, kWhole));
}

TEST(Lsp, OperationsAndBytesAreThoseOfTheFormulas) {
  const LspModel one{.layers = 1, .matrices = {{64, 32}}, .table = 100};
  const LspWork whole{.tokens = 10}, inside{.tokens = 10, .rank = 16};
  const double product = 2 * 64 * 32 * 10, head = 3 * 2 * 100 * 10;
  const auto step = [&](LspMethod method, const LspWork& work) { return lsp_step(workstation(), one, work, method); };
  EXPECT_DOUBLE_EQ(step(LspMethod::resident, whole).operations, head + 4 * product);
  EXPECT_DOUBLE_EQ(step(LspMethod::adapters, whole).operations, head * 2 / 3 + 3 * product);
  EXPECT_DOUBLE_EQ(
      step(LspMethod::published, inside).operations,
      head + 3 * product + 2.0 * 16 * 16 * 10 + 2.0 * 16 * (64 + 32) * 10 + 2.0 * 16 * 16 * 32 + 2.0 * 16 * 64 * 32);
  const auto zero = step(LspMethod::zero, whole);
  EXPECT_DOUBLE_EQ(zero.down, 4 * 64 * 32);
  EXPECT_DOUBLE_EQ(zero.up, 4 * 64 * 32);
  const auto published = step(LspMethod::published, inside);
  EXPECT_DOUBLE_EQ(published.down, 4 * 16 * 16);
  EXPECT_DOUBLE_EQ(published.up, 4 * 16 * 16);
  EXPECT_DOUBLE_EQ(step(LspMethod::resident, whole).down, 0);
}

TEST(Lsp, WaitingForEveryMatrixIsSlowerThanForTheOneBeforeLast) {
  EXPECT_GT(seconds(LspMethod::published, kInside), 1.05 * seconds(LspMethod::published, kInside, kDelays));
}

TEST(Lsp, AMatrixThatDoesNotTrainMovesNothing) {
  const LspModel frozen{.layers = 2, .matrices = {{64, 64, 1, false}}, .table = 100};
  for (const auto method : {LspMethod::zero, LspMethod::published}) {
    const auto step = lsp_step(workstation(), frozen, {.tokens = 10, .rank = 16}, method);
    EXPECT_EQ(step.down, 0);
    EXPECT_EQ(step.up, 0);
    EXPECT_GT(step.seconds, 0);
  }
}

}  // namespace
}  // namespace spillway::study
