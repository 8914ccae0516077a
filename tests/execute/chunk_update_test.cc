// The update of a chunk, whatever its optimizer: tiles in any order, each group of chunks by its own hyperparameters.
#include "spillway/execute/chunk_update.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "spillway/kernels/bf16.h"
#include "tests/plan/models.h"

namespace spillway::execute {
namespace {

using plan::test::Shape;

/// The groups of a chunk: weights and a gradient of ordinary numbers, a state of zeros.
struct Groups {
  Groups(const state::UpdateRule& rule, const state::Chunk& chunk)
      : weight(state::weight_bytes(rule, chunk)),
        state(state::state_bytes(rule, chunk)),
        grad(state::grad_bytes(rule, chunk)) {
    std::mt19937 random(static_cast<unsigned>(chunk.id));
    std::normal_distribution<float> values(0, 0.1F);
    for (auto* group : {&weight, &grad}) {
      auto* const halves = reinterpret_cast<std::uint16_t*>(group->data());
      for (std::size_t i = 0; i < group->size() / 2; ++i) halves[i] = kernels::round_bf16(values(random));
    }
  }
  [[nodiscard]] state::GroupPointers pointers() { return {weight.data(), state.data(), grad.data()}; }
  friend bool operator==(const Groups&, const Groups&) = default;

  std::vector<std::byte> weight, state, grad;
};

enum class Order : std::uint8_t { rising, falling };

Groups updated(const plan::Description& description, std::size_t chunk, const optim::Step& step,
               Order order = Order::rising) {
  const auto layout = description.layout();
  Groups out(description.rule(), layout.chunks()[chunk]);
  ChunkUpdate update(layout, description.rule());
  update.prepare(chunk, out.pointers());
  for (std::size_t part = 0; part < update.parts(chunk); ++part) {
    const auto tiles = update.tiles(chunk, part);
    for (std::size_t t = 0; t < tiles; ++t) {
      update.run(chunk, out.pointers(), step, part, order == Order::rising ? t : tiles - 1 - t);
    }
  }
  update.finish(chunk, out.pointers());
  return out;
}

plan::Description described(const optim::Descriptor& optimizer) {
  return describe(
      Shape{.layers = 1, .hidden = 256, .ffn = 600, .tied = false, .chunk_elements = 1 << 20, .optimizer = &optimizer});
}

TEST(ChunkUpdate, TilesMayBeRunInAnyOrder) {
  for (const auto* optimizer : optim::all()) {
    const auto description = described(*optimizer);
    const auto step = optim::make_step(*optimizer, {{"learning_rate", 1e-3}, {"weight_decay", 0.1}});
    const auto layout = description.layout();
    for (const auto& chunk : layout.chunks()) {
      SCOPED_TRACE(text(optimizer->name, ", chunk ", chunk.id));
      const auto after = updated(description, chunk.id, step);
      EXPECT_TRUE(after == updated(description, chunk.id, step, Order::falling));
      EXPECT_FALSE(after.weight == Groups(description.rule(), chunk).weight);
    }
  }
}

/// What is no matrix of a layer is updated as in a run of its own optimizer, and by its own learning rate.
TEST(ChunkUpdate, OthersOfARunOfMatrixScopeAreUpdatedByTheirOptimizer) {
  const auto muon = described(optim::muon), adamw = described(optim::adamw);
  const auto step = optim::make_step(
      optim::muon, {{"learning_rate", 1e-3}, {"muon.learning_rate", 0.5}, {"weight_decay", 0.1}, {"beta2", 0.95}});
  const auto alone = optim::make_step(optim::adamw, {{"learning_rate", 1e-3}, {"weight_decay", 0.1}, {"beta2", 0.95}});
  ASSERT_FALSE(muon.layout().chunks().front().whole) << "the first is the embedding's";
  EXPECT_TRUE(updated(muon, 0, step) == updated(adamw, 0, alone));
}

TEST(ChunkUpdate, AMatrixIsUpdatedByTheHyperparametersOfItsOwn) {
  const auto description = described(optim::muon);
  const auto layout = description.layout();
  const auto& chunks = layout.chunks();
  const auto at = std::ranges::find(chunks, true, &state::Chunk::whole);
  ASSERT_NE(at, chunks.end());
  const auto of = [&](double rate, double momentum) {
    return updated(
        description, at->id,
        optim::make_step(optim::muon, {{"learning_rate", 1e-3}, {"muon.learning_rate", rate}, {"momentum", momentum}}));
  };
  EXPECT_TRUE(of(0.01, 0.95) == of(0.01, 0.95));
  EXPECT_FALSE(of(0.01, 0.95).weight == of(0.02, 0.95).weight);
  EXPECT_FALSE(of(0.01, 0.95).state == of(0.01, 0.9).state);
}

}  // namespace
}  // namespace spillway::execute
