#include "spillway/state/rule.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "spillway/optim/lsp.h"
#include "tests/state/files.h"

namespace spillway::state {
namespace {

using kernels::Moments;

const std::vector<BlockSpec> kModel{
    {"embed", BlockRole::embedding, {{"embed.weight", {70, 300}}}},
    {"layer", BlockRole::layer, {{"norm", {100}}, {"w", {90, 100}}, {"bias", {30}}, {"v", {5000}}, {"scale", {}}}},
};

/// The same, some of it kept in fp32.
std::vector<BlockSpec> mixed_model() {
  auto out = kModel;
  auto& tensors = out.back().tensors;
  tensors.push_back({.name = "gate", .shape = {50, 100}, .form = Form::fp32});
  tensors.push_back({.name = "bias2", .shape = {77}, .form = Form::fp32});
  return out;
}

std::vector<UpdateRule> every_rule() {
  std::vector<UpdateRule> out;
  for (const auto type : {ComputeType::bf16, ComputeType::fp16, ComputeType::fp32}) {
    for (const auto optimizer : {&optim::adamw, &optim::adam, &optim::lion, &optim::sgd}) {
      for (const auto format : {StateFormat::exact, StateFormat::bf16, StateFormat::int8}) {
        out.push_back({type, optimizer, format});
      }
    }
  }
  return out;
}

std::string words(const UpdateRule& rule) {
  return text(name_of(rule.type), ' ', rule.optimizer->name, ' ', name_of(rule.state_format));
}

/// Bytes of weight and state per parameter of a large model.
double bytes_per_parameter(const UpdateRule& rule) {
  const Layout layout({{"layer", BlockRole::layer, {{"w", {4096, 4096}}, {"norm", {4096}}}}}, kDefaultChunkElements,
                      rule.alignment());
  Bytes sum = 0;
  for (const auto& chunk : layout.chunks()) sum += weight_bytes(rule, chunk) + state_bytes(rule, chunk);
  return static_cast<double>(sum) / static_cast<double>(layout.parameters());
}

TEST(UpdateRule, TakesTwelveEightAndSixBytesPerParameter) {
  EXPECT_NEAR(bytes_per_parameter({}), 12, 0.01);
  EXPECT_NEAR(bytes_per_parameter({.state_format = StateFormat::bf16}), 8, 0.01);
  EXPECT_NEAR(bytes_per_parameter({.state_format = StateFormat::int8}), 6, 0.04);
  EXPECT_NEAR(bytes_per_parameter({.optimizer = &optim::lion, .state_format = StateFormat::int8}), 5, 0.02);
  EXPECT_NEAR(bytes_per_parameter({.type = ComputeType::fp32}), 12, 0.01);
  EXPECT_NEAR(bytes_per_parameter({.type = ComputeType::fp16}), 14, 0.01);
  EXPECT_NEAR(bytes_per_parameter({.type = ComputeType::fp32, .state_format = StateFormat::int8}), 6, 0.04);
}

TEST(UpdateRule, AnUpdateReadsAndWritesWeightAndMomentsAndReadsTheGradient) {
  EXPECT_EQ(update_bytes({}), 26U);
  EXPECT_EQ(update_bytes({.state_format = StateFormat::bf16}), 18U);
  EXPECT_EQ(update_bytes({.state_format = StateFormat::int8}), 14U);
  EXPECT_EQ(update_bytes({.optimizer = &optim::lion}), 18U);
  EXPECT_EQ(update_bytes({.type = ComputeType::fp32}), 28U);
  EXPECT_EQ(update_bytes({.type = ComputeType::fp16}), 30U);
  EXPECT_EQ(update_bytes({.optimizer = &optim::muon}), 26U) << "AdamW's, which updates the other tensors";
}

TEST(UpdateRule, ExactLiesAsItAlwaysDid) {
  const Layout layout(kModel, 8192);
  const auto& chunk = layout.chunks()[0];
  const auto bf16 = state_fields({}, chunk);
  EXPECT_EQ(bf16.moments, (std::array<Bytes, 2>{2 * chunk.elements, 6 * chunk.elements}));
  EXPECT_EQ(bf16.bytes, 10 * chunk.elements);
  const auto fp32 = state_fields({.type = ComputeType::fp32}, chunk);
  EXPECT_EQ(fp32.moments, (std::array<Bytes, 2>{0, 4 * chunk.elements}));
  EXPECT_EQ(fp32.bytes, 8 * chunk.elements);
}

/// Marks [first, first + bytes) of a group as used by one field; each byte may be used once.
void use(std::vector<int>& group, const std::byte* base, const void* first, Bytes bytes) {
  const auto at = static_cast<const std::byte*>(first) - base;
  ASSERT_GE(at, 0);
  ASSERT_LE(static_cast<Bytes>(at) + bytes, group.size());
  for (Bytes i = 0; i < bytes; ++i) ASSERT_EQ(group[static_cast<Bytes>(at) + i]++, 0) << at + static_cast<long>(i);
}

TEST(UpdateRule, NoTwoFieldsOfAnyElementsShareAByte) {
  for (const auto& rule : every_rule()) {
    SCOPED_TRACE(words(rule));
    const Layout layout(mixed_model(), 8192, rule.alignment(), rule.type);
    std::set<std::uint64_t> starts;
    for (const auto& chunk : layout.chunks()) {
      const auto bytes = state_bytes(rule, chunk);
      ASSERT_EQ(bytes % 4096, 0U);
      std::vector<std::byte> weight(weight_bytes(rule, chunk)), state(bytes);
      std::vector<int> used(bytes, 0);
      for (const auto& span : layout.spans(chunk.id)) {
        const auto n = span.elements;
        const auto at = locate(rule, chunk, span, {weight.data(), state.data()}, span.chunk_first, n);
        const auto type = rule_of(rule, chunk).type;
        ASSERT_EQ(type == ComputeType::fp32, chunk.form == Form::fp32 || rule.type == ComputeType::fp32);
        ASSERT_EQ(at.form.weights == kernels::Weights::fp32, type == ComputeType::fp32);
        ASSERT_EQ(at.span.weight, weight.data() + span.chunk_first * field_bytes(type).weight);
        ASSERT_LE((span.chunk_first + n) * field_bytes(type).weight, weight.size());
        ASSERT_EQ(at.span.remainder == nullptr, traits(type).remainder == 0);
        ASSERT_TRUE(starts.insert(at.span.index).second);
        if (at.span.remainder != nullptr) use(used, state.data(), at.span.remainder, n * remainder_bytes(rule));
        for (std::size_t m = 0; m < rule.moments(); ++m) {
          use(used, state.data(), at.span.moments[m], n * traits(at.form.moments).bytes);
          if (at.form.moments != Moments::int8) continue;
          use(used, state.data(), at.span.scales[m], ceil_div(n, kernels::kQuantBlock) * 4);
        }
        const bool small = layout.tensors()[span.tensor].elements < kUnquantisedBelow;
        EXPECT_EQ(at.form.moments == Moments::int8, rule.state_format == StateFormat::int8 && !small);
      }
    }
  }
}

TEST(UpdateRule, APartOfASpanIsFoundWhereTheWholeSaysItIs) {
  const UpdateRule rule{.state_format = StateFormat::int8};
  const Layout layout(kModel, 8192, rule.alignment());
  const auto& chunk = layout.chunks()[layout.blocks()[1].first_chunk];
  std::vector<std::byte> weight(weight_bytes(rule, chunk)), state(state_bytes(rule, chunk)), grad(weight.size());
  const GroupPointers groups{weight.data(), state.data(), grad.data()};
  for (const auto& span : layout.spans(chunk.id)) {
    if (span.elements < 512) continue;
    const auto whole = locate(rule, chunk, span, groups, span.chunk_first, span.elements).span;
    const auto part = locate(rule, chunk, span, groups, span.chunk_first + 512, span.elements - 512).span;
    EXPECT_EQ(part.weight, whole.weight + 1024);
    EXPECT_EQ(part.remainder, whole.remainder + 1024);
    EXPECT_EQ(part.grad, whole.grad + 1024);
    EXPECT_EQ(part.index, whole.index + 512);
    EXPECT_EQ(part.moments[1], whole.moments[1] + 512);
    EXPECT_EQ(part.scales[1], whole.scales[1] + 2);
  }
}

TEST(UpdateRule, TheIndexIsOfTheElementInItsBlockWhateverTheChunks) {
  const Layout whole(mixed_model(), 100'000);
  const auto wide = whole.blocks()[1].first_tensor + 5;  // the first of them
  ASSERT_EQ(whole.tensors()[wide].spec.form, Form::fp32);
  const auto begin = whole.tensors()[wide].first;
  for (const std::uint64_t chunk_elements : {2048, 8192, 100'000}) {
    const Layout layout(mixed_model(), chunk_elements);
    for (const auto& chunk : layout.chunks()) {
      for (const auto& span : layout.spans(chunk.id)) {
        const auto& tensor = layout.tensors()[span.tensor];
        const auto at = locate({}, chunk, span, {}, span.chunk_first, span.elements);
        const auto first =
            chunk.form == Form::fp32 ? begin + chunk.packing.values_in(tensor.first - begin) : tensor.first;
        EXPECT_EQ(at.span.index, (tensor.block << 40) + first + span.tensor_first);
        EXPECT_EQ(at.span.weight, nullptr);
        EXPECT_EQ(at.span.moments[0], nullptr);
      }
    }
  }
}

TEST(UpdateRule, ArraysCoverTheGroupUpToItsPadding) {
  for (const auto& rule : every_rule()) {
    SCOPED_TRACE(words(rule));
    const Layout layout(mixed_model(), 8192, rule.alignment(), rule.type);
    for (const auto& chunk : layout.chunks()) {
      Bytes end = 0;
      for (const auto& array : state_arrays(rule, chunk)) {
        EXPECT_EQ(array.first, end) << array.name;
        end = array.first + array.bytes;
      }
      EXPECT_EQ(round_up(end, 4096), state_bytes(rule, chunk));
    }
  }
}

TEST(UpdateRule, NamesAreReadBackAndOthersRefusedWithThoseThereAre) {
  for (const auto& rule : every_rule()) {
    EXPECT_EQ(parse_compute_type(name_of(rule.type)), rule.type);
    EXPECT_EQ(parse_format(name_of(rule.state_format)), rule.state_format);
  }
  expect_error(ErrorCode::bad_input, {"state_format is int4", "exact, bf16, int8"}, [] { (void)parse_format("int4"); });
}

TEST(Rule, WhatIsFrozenHasAWeightAlone) {
  for (const auto type : {ComputeType::bf16, ComputeType::fp16, ComputeType::fp32}) {
    const UpdateRule rule{.type = type};
    const Chunk chunk{.elements = 4096, .used = 4096, .training = Training::frozen};
    EXPECT_EQ(weight_bytes(rule, chunk), 4096 * field_bytes(type).weight);
    EXPECT_EQ(state_bytes(rule, chunk), 0U);
    EXPECT_EQ(grad_bytes(rule, chunk), 0U);
    EXPECT_TRUE(state_arrays(rule, chunk).empty());
    std::byte memory[8] = {};
    const auto located = locate(rule, chunk, {.elements = 4096}, {.weight = memory, .state = memory}, 0, 1);
    EXPECT_EQ(located.span.weight, memory);
    EXPECT_EQ(located.span.remainder, nullptr);
    EXPECT_EQ(located.span.moments[0], nullptr);
  }
}

/// Arrays for people and files: codes, then a scale for each block, within the bytes of the chunk.
TEST(Rule, WhatIsPackedHasCodesAndScales) {
  for (const auto type : {ComputeType::bf16, ComputeType::fp32}) {
    for (const auto form : {Form::nf4, Form::int8}) {
      const UpdateRule rule{.type = type};
      const Chunk chunk{
          .elements = kChunkGranule, .training = Training::frozen, .form = form, .packing = packing_of(form, type)};
      const auto arrays = weight_arrays(rule, chunk);
      ASSERT_EQ(arrays.size(), 2U);
      EXPECT_EQ(arrays[0].name, "weight");
      EXPECT_EQ(arrays[0].bytes / arrays[0].item * arrays[0].covers, chunk.values());
      EXPECT_EQ(arrays[1].name, "weight_scale");
      EXPECT_EQ(arrays[1].first, arrays[0].bytes);
      EXPECT_EQ(arrays[1].bytes / arrays[1].item * arrays[1].covers, chunk.values());
      EXPECT_LE(arrays[1].first + arrays[1].bytes, weight_bytes(rule, chunk));
      EXPECT_EQ(parse_packed_form(name_of(form)), form);
    }
  }
  expect_error(ErrorCode::bad_input, {"fp4", "nf4, int8, nf4_nested"}, [] { (void)parse_packed_form("fp4"); });
}

/// Codes, the codes of scales, and what these are decoded with, one behind the other.
TEST(Rule, NestedScalesAreAnArrayOfTheirOwn) {
  for (const auto type : {ComputeType::bf16, ComputeType::fp32}) {
    const auto packing = packing_of(Form::nf4_nested, type);
    const UpdateRule rule{.type = type};
    const Chunk chunk{.elements = packing.granule(kChunkGranule),
                      .training = Training::frozen,
                      .form = Form::nf4_nested,
                      .packing = packing};
    const auto arrays = weight_arrays(rule, chunk);
    ASSERT_EQ(arrays.size(), 3U);
    Bytes end = 0;
    for (const auto& array : arrays) {
      EXPECT_EQ(array.first, end) << array.name;
      EXPECT_EQ(array.bytes / array.item * array.covers, chunk.values()) << array.name;
      end += array.bytes;
    }
    EXPECT_EQ(end, weight_bytes(rule, chunk));
    EXPECT_EQ(parse_packed_form(name_of(Form::nf4_nested)), Form::nf4_nested);
  }
}

TEST(Rule, ASubspaceHasTheRestOfTheMatrixTheMomentsOfSAndItsProjectors) {
  const optim::Reduced space{.rows = 256, .columns = 512, .rank = 128, .nonzeros = 4};
  const Chunk chunk{.elements = 256 * 512,
                    .used = 256 * 512,
                    .training = Training::reduced,
                    .gradient_elements = 128 * 128,
                    .reduced = space};
  const UpdateRule rule{.type = ComputeType::bf16};
  const auto projectors = sizeof(optim::RefitRecord) + 4 * (256 + 512 + 2 * kernels::kProjectorPad) * sizeof(float);
  EXPECT_EQ(optim::projector_fields(space).bytes, projectors);
  EXPECT_EQ(weight_bytes(rule, chunk), 256U * 512 * 2);
  EXPECT_EQ(state_bytes(rule, chunk), round_up(Bytes{256 * 512 * 2 + 2 * 128 * 128 * 4 + projectors}, Bytes{4096}));
  EXPECT_EQ(grad_bytes(rule, chunk), 128U * 128 * 2 + round_up(projectors, Bytes{4096}));
  // S in full, and of the matrix 8 of the 26 bytes that an update of an element moves.
  EXPECT_EQ(update_elements(rule, chunk), 128U * 128 + ceil_div(std::uint64_t{256 * 512} * 8, 26));
  std::vector<std::byte> weight(weight_bytes(rule, chunk)), state(state_bytes(rule, chunk)),
      grad(grad_bytes(rule, chunk));
  const GroupPointers groups{weight.data(), state.data(), grad.data()};
  const auto whole = locate(rule, chunk, {.elements = 256 * 512}, groups, 1024, 512);
  EXPECT_EQ(whole.span.weight, weight.data() + 2048);
  EXPECT_EQ(whole.span.remainder, state.data() + 2048);
  EXPECT_EQ(whole.span.grad, nullptr);
  EXPECT_EQ(whole.span.moments[0], nullptr);
  const auto inner = locate_gradient(rule, chunk, groups, 256, 512);
  EXPECT_EQ(inner.form.weights, kernels::Weights::fp32);
  EXPECT_EQ(inner.span.grad, grad.data() + 512);
  EXPECT_EQ(inner.span.moments[0], state.data() + 256 * 512 * 2 + 1024);
  EXPECT_EQ(inner.span.moments[1], inner.span.moments[0] + 128 * 128 * 4);
  EXPECT_EQ(state_fields(rule, chunk).auxiliary + projectors, 256U * 512 * 2 + 2 * 128 * 128 * 4 + projectors);
}

}  // namespace
}  // namespace spillway::state
