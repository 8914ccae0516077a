#include "spillway/state/layout.h"

#include <map>
#include <random>
#include <set>

#include "tests/state/files.h"

namespace spillway::state {
namespace {

std::vector<BlockSpec> random_model(std::mt19937_64& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  std::vector<BlockSpec> blocks;
  const auto hidden = pick(1, 300);
  blocks.push_back({"embed", BlockRole::embedding, {{"embed.weight", {pick(1, 4000), hidden}}}});
  const auto layers = pick(1, 4);
  for (std::int64_t i = 0; i < layers; ++i) {
    BlockSpec layer{"layer." + std::to_string(i), BlockRole::layer, {}};
    const auto tensors = pick(1, 6);
    for (std::int64_t t = 0; t < tensors; ++t) {
      std::vector<std::int64_t> shape(static_cast<std::size_t>(pick(0, 3)));
      for (auto& size : shape) size = pick(1, 40);
      layer.tensors.push_back({layer.name + "." + std::to_string(t), shape, pick(0, 1) == 1});
    }
    blocks.push_back(layer);
  }
  if (pick(0, 1) == 1) blocks.push_back({"head", BlockRole::head, {{"head.weight", {pick(1, 4000), hidden}}}});
  return blocks;
}

/// Every element of every tensor lies in exactly one chunk, at the place its block says.
void check_spans(const Layout& layout) {
  std::vector<std::uint64_t> next(layout.tensors().size(), 0);
  std::uint64_t elements = 0;
  for (const auto& chunk : layout.chunks()) {
    std::uint64_t at = 0;
    for (const auto& span : layout.spans(chunk.id)) {
      const auto& tensor = layout.tensors()[span.tensor];
      EXPECT_EQ(tensor.block, chunk.block);
      EXPECT_EQ(span.tensor_first, next[span.tensor]) << "a tensor's parts come in order";
      const auto& packing = chunk.packing;
      EXPECT_EQ(tensor.first + packing.elements_of(span.tensor_first),
                chunk.first + packing.elements_of(span.chunk_first));
      EXPECT_GE(span.chunk_first, at);
      EXPECT_GT(span.elements, 0U);
      next[span.tensor] += span.elements;
      at = span.chunk_first + span.elements;
      elements += span.elements;
    }
    EXPECT_LE(at, chunk.packing.values_in(chunk.used));
  }
  for (std::size_t i = 0; i < next.size(); ++i) EXPECT_EQ(next[i], layout.tensors()[i].elements);
  EXPECT_EQ(elements, layout.parameters());
}

void check_roles(const Layout& layout) {
  std::vector<std::size_t> layers;
  const Block* embedding = nullptr;
  for (const auto& block : layout.blocks()) {
    if (block.role == BlockRole::layer) layers.push_back(static_cast<std::size_t>(&block - layout.blocks().data()));
    if (block.role == BlockRole::embedding) embedding = &block;
    EXPECT_EQ(block.pass_chunks, block.role == BlockRole::layer ? block.chunks : 1);
    EXPECT_EQ(traits(block.role).is_table, block.rows > 0);
  }
  EXPECT_EQ(layout.layers(), layers);
  EXPECT_EQ(layout.embedding(), embedding);
}

void check_chunks(const Layout& layout, std::uint64_t chunk_elements) {
  check_roles(layout);
  std::uint64_t largest = 0;
  for (std::size_t i = 0; i < layout.chunks().size(); ++i) {
    const auto& chunk = layout.chunks()[i];
    EXPECT_EQ(chunk.id, i);
    EXPECT_GT(chunk.used, 0U);
    EXPECT_EQ(chunk.elements, round_up(chunk.used, kChunkGranule));
    const auto& block = layout.blocks()[chunk.block];
    if (block.role == BlockRole::layer) {
      EXPECT_LE(chunk.elements, round_up(chunk_elements, kChunkGranule));
      EXPECT_EQ(chunk.first % kChunkGranule, 0U);
    } else {
      EXPECT_EQ(chunk.first % block.columns, 0U) << "slices are whole rows";
      EXPECT_EQ(chunk.used % block.columns, 0U);
      EXPECT_LE(chunk.used, block.slice_rows * block.columns);
    }
    largest = std::max(largest, chunk.elements);
  }
  EXPECT_EQ(layout.largest_chunk(), largest);
}

void check_blocks(const Layout& layout) {
  std::size_t tensor = 0, chunk = 0;
  for (const auto& block : layout.blocks()) {
    EXPECT_EQ(block.first_tensor, tensor);
    EXPECT_EQ(block.first_chunk, chunk);
    std::uint64_t elements = 0, end = 0;
    for (std::size_t i = 0; i < block.chunks; ++i) {
      const auto& part = layout.chunks()[block.first_chunk + i];
      EXPECT_EQ(part.first, end) << "chunks follow each other";
      end = part.first + part.used;
      elements += part.elements;
    }
    EXPECT_EQ(block.elements, elements);
    if (block.role == BlockRole::layer) {
      for (std::size_t i = 0; i < block.tensors; ++i) {
        EXPECT_EQ(layout.tensors()[block.first_tensor + i].first % kTensorAlignment, 0U);
      }
    }
    tensor += block.tensors;
    chunk += block.chunks;
  }
  EXPECT_EQ(tensor, layout.tensors().size());
  EXPECT_EQ(chunk, layout.chunks().size());
}

TEST(Layout, RandomModelsAreCoveredExactlyOnce) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const auto blocks = random_model(random);
    const std::uint64_t chunk = std::uniform_int_distribution<std::uint64_t>(1, 40'000)(random);
    const Layout layout(blocks, chunk);
    SCOPED_TRACE(text("round ", round, ", chunks of ", chunk));
    check_spans(layout);
    check_chunks(layout, chunk);
    check_blocks(layout);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Layout, SlicesOfATableAreOfEqualHeight) {
  // 10 rows of 1024 in chunks of 4096: three slices are needed, of 4, 4 and 2 rows.
  const Layout layout({{"embed", BlockRole::embedding, {{"embed.weight", {10, 1024}}}}}, 4096);
  const auto& block = layout.blocks().front();
  EXPECT_EQ(block.rows, 10U);
  EXPECT_EQ(block.columns, 1024U);
  EXPECT_EQ(block.slice_rows, 4U);
  ASSERT_EQ(layout.chunks().size(), 3U);
  EXPECT_EQ(layout.chunks()[2].first, 8U * 1024);
  EXPECT_EQ(layout.chunks()[2].used, 2U * 1024);
}

TEST(Layout, ARowLongerThanAChunkIsASliceOfItsOwn) {
  const Layout layout({{"embed", BlockRole::embedding, {{"embed.weight", {3, 5000}}}}}, 2048);
  ASSERT_EQ(layout.chunks().size(), 3U);
  EXPECT_EQ(layout.chunks()[0].used, 5000U);
  EXPECT_EQ(layout.chunks()[0].elements, 6144U);
}

TEST(Layout, ChunksOfALayerAreOfEqualSize) {
  // 5 granules in chunks of at most 4: 3 and 2, not 4 and 1.
  const Layout layout({{"layer", BlockRole::layer, {{"w", {5 * 2048}}}}}, 4 * 2048);
  ASSERT_EQ(layout.chunks().size(), 2U);
  EXPECT_EQ(layout.chunks()[0].elements, 3U * 2048);
  EXPECT_EQ(layout.chunks()[1].elements, 2U * 2048);
}

TEST(Layout, WithBlocksOfCodesNoneHoldsTwoTensorsOrTwoSlices) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 100; ++round) {
    const auto blocks = random_model(random);
    const std::uint64_t chunk = std::uniform_int_distribution<std::uint64_t>(1, 40'000)(random);
    const Layout layout(blocks, chunk, 256);
    SCOPED_TRACE(text("round ", round, ", chunks of ", chunk));
    check_spans(layout);
    check_blocks(layout);
    for (const auto& it : layout.chunks()) {
      for (const auto& span : layout.spans(it.id)) {
        ASSERT_EQ(span.chunk_first % 256, 0U);
        ASSERT_EQ(span.tensor_first % 256, 0U);
      }
    }
  }
}

TEST(Layout, OfSeveralShardsCoversTheSameWithRunsOfEach) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto blocks = random_model(random);
    const std::uint64_t chunk = std::uniform_int_distribution<std::uint64_t>(1, 40'000)(random);
    const auto shards = std::uniform_int_distribution<std::size_t>(1, 9)(random);
    const Layout layout(blocks, chunk, kTensorAlignment, ComputeType::bf16, optim::Scope::element, shards);
    SCOPED_TRACE(text("round ", round, ", chunks of ", chunk, ", ", shards, " shards"));
    EXPECT_EQ(layout.shards(), shards);
    check_spans(layout);
    check_chunks(layout, chunk);
    check_blocks(layout);
    for (const auto& block : layout.blocks()) {
      std::size_t shard = 0;
      for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
        EXPECT_LE(shard, layout.chunks()[c].shard) << "a block's shards come in order";
        shard = layout.chunks()[c].shard;
      }
      EXPECT_LT(shard, shards);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Layout, WholeMatricesGoToTheShardWithTheLeast) {
  const std::vector<BlockSpec> model = {
      {"layer", BlockRole::layer, {{"a", {96, 64}}, {"b", {32, 64}}, {"c", {32, 64}}, {"d", {64, 64}}}}};
  const Layout layout(model, 4096, kTensorAlignment, ComputeType::bf16, optim::Scope::matrix, 2);
  std::vector<std::size_t> shards;
  for (const auto& chunk : layout.chunks()) shards.push_back(chunk.shard);
  EXPECT_EQ(shards, (std::vector<std::size_t>{0, 1, 1, 1})) << "of 3, 1, 1 and 2 granules";
}

TEST(Layout, SmallTensorsAreNumberedApartInEachChunk) {
  const Layout layout({{"layer", BlockRole::layer, {{"norm", {100}}, {"w", {64, 64}}, {"bias", {20}}}}});
  const auto& spans = layout.spans(0);
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0].unquantised, 0U);
  EXPECT_FALSE(spans[1].is_unquantised());
  EXPECT_EQ(spans[2].unquantised, 112U) << "100 rounded up to 16";
  EXPECT_EQ(layout.chunks()[0].unquantised, 112U + 32U);
}

TEST(Layout, AScalarIsOneElement) {
  const Layout layout({{"layer", BlockRole::layer, {{"scale", {}}}}});
  EXPECT_EQ(layout.parameters(), 1U);
  EXPECT_EQ(layout.chunks().front().elements, kChunkGranule);
}

TEST(Layout, ASpecThatCannotBeIsRefusedByName) {
  const auto refused = [](const std::vector<BlockSpec>& blocks, const std::vector<std::string>& parts) {
    expect_error(ErrorCode::bad_input, parts, [&] { const Layout layout(blocks); });
  };
  const auto layer = BlockRole::layer;
  refused({{"empty", layer, {}}}, {"empty", "no tensors"});
  refused({{"nameless", layer, {{"", {2}}}}}, {"nameless"});
  refused({{"a", layer, {{"w", {2}}}}, {"b", layer, {{"w", {2}}}}}, {"tensor w", "twice"});
  refused({{"a", layer, {{"w", {2, 0}}}}}, {"tensor w", "dimension of 0"});
  refused({{"a", layer, {{"w", {-3}}}}}, {"tensor w", "-3"});
  refused({{"a", layer, {{"w", {1LL << 40, 1LL << 40}}}}}, {"tensor w", "more elements"});
  refused({{"table", BlockRole::embedding, {{"w", {4}}}}}, {"table", "two dimensions"});
  refused({{"table", BlockRole::head, {{"w", {4, 4}}, {"bias", {4}}}}}, {"table", "exactly one"});
}

TEST(FieldBytes, AddUpToTheFormat) {
  EXPECT_EQ(field_bytes(ComputeType::bf16).weight, 2U);
  EXPECT_EQ(field_bytes(ComputeType::fp32).weight, 4U);
  EXPECT_EQ(field_bytes(ComputeType::bf16).grad, 2U);
  EXPECT_EQ(field_bytes(ComputeType::fp32).grad, 4U);
}

TEST(Layout, WhatIsTrainableComesFirstInALayerAndNoChunkMixes) {
  std::mt19937_64 random(23);
  std::size_t mixed = 0;
  for (int round = 0; round < 50; ++round) {
    auto model = random_model(random);
    for (auto& block : model) {
      for (auto& tensor : block.tensors) tensor.training = random() % 2 == 0 ? Training::frozen : Training::full;
    }
    const auto chunk_elements = kChunkGranule << (random() % 4);
    const Layout layout(model, chunk_elements, random() % 2 == 0 ? 64 : 256);
    check_spans(layout);
    check_chunks(layout, chunk_elements);
    check_blocks(layout);
    std::uint64_t trainable = 0;
    for (const auto& block : layout.blocks()) {
      std::uint64_t elements = 0;
      for (std::size_t i = 0; i < block.chunks; ++i) {
        const auto& chunk = layout.chunks()[block.first_chunk + i];
        EXPECT_EQ(is_trainable(chunk.training), i < block.trainable_chunks);
        if (is_trainable(chunk.training)) elements += chunk.elements;
        for (const auto& span : layout.spans(chunk.id)) {
          EXPECT_EQ(layout.tensors()[span.tensor].spec.training, chunk.training);
          if (is_trainable(chunk.training)) trainable += span.elements;
        }
      }
      EXPECT_EQ(elements, block.trainable_elements);
      mixed += block.trainable_chunks > 0 && block.trainable_chunks < block.chunks ? 1 : 0;
    }
    EXPECT_EQ(trainable, layout.trainable_parameters());
  }
  EXPECT_GT(mixed, 20U);
}

TEST(Layout, WithoutFrozenTensorsItIsWhatItWas) {
  const std::vector<BlockSpec> model{
      {"embed", BlockRole::embedding, {{"embed", {1000, 48}}}},
      {"layer", BlockRole::layer, {{"a", {100, 37}}, {"b", {5000}}, {"c", {3}}}},
  };
  const Layout layout(model, 4096);
  std::vector<std::uint64_t> found;
  for (const auto& chunk : layout.chunks()) found.insert(found.end(), {chunk.first, chunk.elements, chunk.used});
  // As state::Layout made it before it knew of frozen tensors.
  const std::vector<std::uint64_t> layer(found.end() - 9, found.end());
  EXPECT_EQ(layer, (std::vector<std::uint64_t>{0, 4096, 4096, 4096, 4096, 4096, 8192, 2048, 2048}));
  EXPECT_EQ(layout.tensors()[2].first, 3712U);
  EXPECT_EQ(layout.tensors()[3].first, 8768U);
  EXPECT_EQ(layout.blocks()[1].trainable_elements, layout.blocks()[1].elements);
}

TEST(Layout, AMatrixThatIsTrainedInASubspaceIsAChunkOfItsOwnBetweenTheOthers) {
  TensorSpec wide{.name = "wide", .shape = {300, 50}, .training = Training::reduced, .rank = 24, .nonzeros = 4};
  TensorSpec tall{.name = "tall", .shape = {90, 200}, .training = Training::reduced, .rank = 80, .nonzeros = 2};
  const TensorSpec fixed{.name = "fixed", .shape = {70}, .training = Training::frozen};
  const Layout layout({{"layer", BlockRole::layer, {fixed, wide, {"bias", {300}}, tall}}}, 4096);
  const auto& chunks = layout.chunks();
  ASSERT_EQ(chunks.size(), 4U);
  for (std::size_t c = 0; c + 1 < chunks.size(); ++c)
    EXPECT_EQ(chunks[c].first + chunks[c].elements, chunks[c + 1].first);
  EXPECT_EQ(chunks[0].training, Training::full);
  EXPECT_EQ(chunks[0].gradient_elements, chunks[0].elements);
  EXPECT_EQ(chunks[3].training, Training::frozen);
  EXPECT_EQ(chunks[3].gradient_elements, 0U);
  for (const auto& [chunk, tensor] : {std::pair{1, 1}, {2, 3}}) {
    const auto& it = chunks[static_cast<std::size_t>(chunk)];
    const auto& of = layout.tensors()[static_cast<std::size_t>(tensor)];
    ASSERT_EQ(layout.spans(it.id).size(), 1U);
    EXPECT_EQ(layout.spans(it.id).front().tensor, static_cast<std::size_t>(tensor));
    EXPECT_EQ(layout.spans(it.id).front().elements, of.elements) << "larger than a chunk may else be, and whole";
    EXPECT_EQ(it.reduced, of.reduced);
    EXPECT_EQ(it.gradient_elements, round_up(of.spec.rank * of.spec.rank, kChunkGranule));
    EXPECT_EQ(of.gradient_shape(), (std::vector<std::int64_t>(2, static_cast<std::int64_t>(of.spec.rank))));
  }
  EXPECT_TRUE(layout.spans(1).front().is_unquantised()) << "24 x 24 moments";
  EXPECT_EQ(chunks[1].unquantised, 576U);
  EXPECT_FALSE(layout.spans(2).front().is_unquantised());
  EXPECT_EQ(layout.blocks()[0].trainable_chunks, 3U);
}

TEST(Layout, PackedTensorsAreInChunksOfWholeBlocksAndTakeFewerPlaces) {
  std::mt19937_64 random(31);
  std::size_t several = 0;
  for (int round = 0; round < 100; ++round) {
    auto model = random_model(random);
    for (auto& block : model) {
      for (auto& tensor : block.tensors) {
        tensor.training = random() % 2 == 0 ? Training::frozen : Training::full;
        if (block.role != BlockRole::layer || tensor.training != Training::frozen) continue;
        tensor.form = kForms[random() % kForms.size()];
        if (random() % 2 == 0 && tensor.shape.size() == 3) tensor.shape[0] *= 40;
      }
    }
    const auto type = round % 3 == 0 ? ComputeType::fp32 : ComputeType::bf16;
    const auto chunk_elements = kChunkGranule << (random() % 8);
    const Layout layout(model, chunk_elements, random() % 2 == 0 ? 64 : 256, type);
    check_spans(layout);
    for (const auto& chunk : layout.chunks()) {
      if (!is_packed(chunk.form)) continue;
      EXPECT_TRUE(layout.blocks()[chunk.block].packed);
      EXPECT_EQ(chunk.elements % kChunkGranule, 0U);
      EXPECT_EQ(chunk.values() % kernels::kPackedBlock, 0U);
      EXPECT_EQ(chunk.gradient_elements, 0U);
      EXPECT_LE(chunk.elements, std::max(chunk_elements, chunk.packing.granule(kChunkGranule)));
      const auto bytes = kernels::encoded_bytes(encoding_of(chunk.form, type), chunk.values());
      EXPECT_LE(bytes, chunk.elements * field_bytes(type).weight);
      EXPECT_LT(chunk.elements * field_bytes(type).weight,
                bytes + 4096 + chunk.packing.elements * field_bytes(type).weight)
          << "less than a page and a group are left over";
      for (const auto& span : layout.spans(chunk.id)) {
        EXPECT_EQ(span.chunk_first % chunk.packing.values, 0U) << "blocks are the tensor's";
        EXPECT_EQ(span.tensor_first % chunk.packing.values, 0U);
        several += span.tensor_first > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(several, 10U);
}

TEST(Layout, PiecesThatAreApartAreObjectsOfWholeChunks) {
  const auto frozen = [](const char* name, std::vector<std::int64_t> shape, bool apart) {
    return TensorSpec{.name = name,
                      .shape = shape,
                      .training = Training::frozen,
                      .form = Form::nf4,
                      .pieces = apart ? static_cast<std::uint64_t>(shape[0]) : 0,
                      .apart = apart};
  };
  const std::vector<BlockSpec> model{{"layer",
                                      BlockRole::layer,
                                      {{.name = "adapter", .shape = {8, 64}},
                                       frozen("before", {70, 30}, false),
                                       frozen("experts", {5, 256, 512}, true),
                                       frozen("after", {31, 9}, false)}}};
  for (const std::size_t shards : {1, 4}) {
    for (const std::uint64_t most : {4096, 1 << 20}) {
      const Layout layout(model, most, kTensorAlignment, ComputeType::bf16, optim::Scope::element, shards);
      check_spans(layout);
      std::map<std::size_t, std::uint64_t> values;
      for (const auto& chunk : layout.chunks()) {
        for (const auto& span : layout.spans(chunk.id)) {
          if (layout.tensors()[span.tensor].spec.name != "experts") continue;
          EXPECT_EQ(span.tensor_first / (256 * 512) + 1, chunk.object) << "chunk " << chunk.id;
          values[chunk.object] += span.elements;
          EXPECT_EQ(layout.spans(chunk.id).size(), 1U);
        }
      }
      ASSERT_EQ(values.size(), 5U);
      for (const auto& [object, count] : values) EXPECT_EQ(count, 256U * 512) << object;
      EXPECT_EQ(layout.chunks().front().object, 0U);
      EXPECT_EQ(layout.chunks().back().object, 6U) << "what lies behind them";
    }
  }
  auto odd = model;
  odd[0].tensors[2].shape = {5, 256, 64};
  EXPECT_THROW(Layout{odd}, Error) << "no whole granules";
  odd = model;
  odd[0].tensors[1].apart = true;
  EXPECT_THROW(Layout{odd}, Error) << "without pieces";
}

TEST(Layout, ObjectsAreCountedInTheirBlock) {
  const auto experts = [](const char* name) {
    return TensorSpec{.name = name,
                      .shape = {3, 256, 512},
                      .training = Training::frozen,
                      .form = Form::nf4,
                      .pieces = 3,
                      .apart = true};
  };
  const Layout layout({{"layer", BlockRole::layer, {experts("up"), experts("down")}},
                       {"head", BlockRole::head, {{.name = "head", .shape = {16, 64}}}}});
  std::set<std::size_t> objects;
  for (const auto& chunk : layout.chunks()) {
    if (chunk.block == 0) objects.insert(chunk.object);
    EXPECT_TRUE(chunk.block == 0 || chunk.object == 0) << "a table";
  }
  EXPECT_EQ(objects, (std::set<std::size_t>{1, 2, 3, 4, 5, 6}));
}

TEST(Layout, ChunksHaveTheShareOfTheirPiece) {
  const TensorSpec experts{.name = "experts",
                           .shape = {3, 256, 512},
                           .training = Training::frozen,
                           .form = Form::nf4,
                           .pieces = 3,
                           .apart = true,
                           .asked = 0.5,
                           .asked_by_piece = {0.25, 1, 0.125}};
  const auto layout_of = [&](const std::vector<double>& shares) {
    auto tensor = experts;
    tensor.asked_by_piece = shares;
    return Layout({{"layer", BlockRole::layer, {{.name = "adapter", .shape = {8, 64}}, tensor}}}, 4096);
  };
  const auto shared = layout_of(experts.asked_by_piece), even = layout_of({});
  std::size_t counted = 0;
  for (const auto& chunk : shared.chunks()) {
    const auto& span = shared.spans(chunk.id).front();
    const bool is_expert = shared.tensors()[span.tensor].spec.apart;
    EXPECT_EQ(chunk.asked, is_expert ? experts.asked_by_piece[span.tensor_first / (256 * 512)] : 1);
    EXPECT_EQ(even.chunks()[chunk.id].asked, is_expert ? 0.5 : 1);
    counted += is_expert ? 1 : 0;
  }
  EXPECT_GE(counted, 3U);
  EXPECT_THROW(layout_of({0.5, 0.5}), Error) << "there are three";
  EXPECT_THROW(layout_of({0.5, 0.5, 0}), Error) << "a piece that no step asks for";
}

TEST(Layout, Fp32TensorsAreInChunksOfTheirOwnAndTakeTwoPlaces) {
  std::mt19937_64 random(29);
  std::size_t mixed = 0;
  for (int round = 0; round < 100; ++round) {
    auto model = random_model(random);
    for (auto& block : model) {
      for (auto& tensor : block.tensors) {
        tensor.training = random() % 3 == 0 ? Training::frozen : Training::full;
        if (block.role == BlockRole::layer && random() % 2 == 0) tensor.form = Form::fp32;
      }
    }
    const auto chunk_elements = kChunkGranule << (random() % 4);
    const Layout layout(model, chunk_elements, random() % 2 == 0 ? 64 : 256);
    check_spans(layout);
    check_chunks(layout, chunk_elements);
    check_blocks(layout);
    for (const auto& chunk : layout.chunks()) {
      for (const auto& span : layout.spans(chunk.id)) {
        const auto& spec = layout.tensors()[span.tensor].spec;
        EXPECT_EQ(spec.form, chunk.form);
        EXPECT_EQ(spec.training, chunk.training);
      }
      EXPECT_EQ(chunk.packing.elements_of(chunk.values()), chunk.elements);
      EXPECT_EQ(chunk.gradient_elements, is_trainable(chunk.training) ? chunk.values() : 0);
      mixed += chunk.form == Form::fp32 ? 1 : 0;
    }
    for (const auto& block : layout.blocks()) {
      for (std::size_t i = 0; i < block.chunks; ++i) {
        EXPECT_EQ(is_trainable(layout.chunks()[block.first_chunk + i].training), i < block.trainable_chunks);
      }
    }
    // In a run of fp32 nothing is.
    auto narrow = model;
    for (auto& block : narrow) {
      for (auto& tensor : block.tensors) tensor.form = Form::as_run;
    }
    const Layout all(model, chunk_elements, 64, ComputeType::fp32), none(narrow, chunk_elements);
    ASSERT_EQ(all.chunks().size(), none.chunks().size());
    for (std::size_t t = 0; t < all.tensors().size(); ++t) EXPECT_EQ(all.tensors()[t].first, none.tensors()[t].first);
  }
  EXPECT_GT(mixed, 100U);
}

TEST(Layout, WhatCannotBeFp32IsRefusedByName) {
  const TensorSpec table{.name = "table", .shape = {4, 4}, .form = Form::fp32};
  expect_error(ErrorCode::bad_input, {"table", "fp32"}, [&] {
    const Layout layout({{"embed", BlockRole::embedding, {table}}});
  });
  TensorSpec inside{.name = "w", .shape = {64, 64}, .training = Training::reduced, .rank = 8, .nonzeros = 2};
  inside.form = Form::fp32;
  expect_error(ErrorCode::bad_input, {"tensor w", "subspace", "fp32"}, [&] {
    const Layout layout({{"layer", BlockRole::layer, {inside}}});
  });
}

/// Of matrix scope each matrix of a layer is a chunk, whatever its size; the rest is laid out as ever.
TEST(Layout, MatricesOfAnOptimizerThatNeedsThemWholeAreChunks) {
  const std::vector<BlockSpec> model = {{"embed", BlockRole::embedding, {{"embed", {500, 64}, true}}},
                                        {"layer",
                                         BlockRole::layer,
                                         {{"up", {96, 64}},
                                          {"norm", {64}},
                                          {"down", {64, 96}},
                                          {"still", {64, 64}, false, Training::frozen},
                                          {.name = "score", .shape = {2, 64}, .table = true},
                                          {"experts", {4, 32, 64}},
                                          {.name = "gate", .shape = {8, 64}, .form = Form::fp32}}},
                                        {"head", BlockRole::head, {{"head", {500, 64}, true}}}};
  const Layout layout(model, 4096, kTensorAlignment, ComputeType::bf16, optim::Scope::matrix);
  std::map<std::string, const Chunk*> whole;
  for (const auto& chunk : layout.chunks()) {
    if (!chunk.whole) continue;
    ASSERT_EQ(layout.spans(chunk.id).size(), 1U);
    const auto& span = layout.spans(chunk.id).front();
    EXPECT_EQ(span.chunk_first, 0U);
    whole[layout.tensors()[span.tensor].spec.name] = &chunk;
  }
  ASSERT_EQ(whole.size(), 2U);
  EXPECT_EQ(whole.at("up")->rows, 96U);
  EXPECT_EQ(whole.at("up")->columns, 64U);
  EXPECT_EQ(whole.at("up")->used, 96U * 64U) << "larger than a chunk, and one all the same";
  EXPECT_EQ(whole.at("down")->rows, 64U);
  std::map<std::string, std::uint64_t> held;
  for (const auto& chunk : layout.chunks()) {
    for (const auto& span : layout.spans(chunk.id)) held[layout.tensors()[span.tensor].spec.name] += span.elements;
  }
  for (const auto& tensor : layout.tensors()) {
    EXPECT_EQ(held[tensor.spec.name], tensor.elements) << tensor.spec.name;
    EXPECT_EQ(tensor.whole, whole.contains(tensor.spec.name)) << tensor.spec.name;
  }
}

}  // namespace
}  // namespace spillway::state
