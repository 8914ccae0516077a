// Small models for the planner's tests.
#pragma once

#include <optional>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "spillway/plan/description.h"

namespace spillway::plan::test {

struct Shape {
  std::int64_t layers = 3, hidden = 64, ffn = 96, vocabulary = 500;
  bool embedding = true, head = true, tied = true;
  std::uint64_t tokens = 128, micro_batches = 2, chunk_elements = 8192;
  const optim::Descriptor* optimizer = &optim::adamw;
  state::StateFormat format = state::StateFormat::exact;
  std::string frozen = {};  ///< regular expression of names; empty: nothing is
  std::string fp32 = {};    ///< of tensors in layers that are kept in fp32
  std::string packed = {};  ///< of matrices in layers that are kept as `packed_as` where they are frozen
  state::Form packed_as = state::Form::nf4;
  std::int64_t experts = 0;     ///< of each layer, in one frozen tensor, packed; each an object of its own
  bool trains_experts = false;  ///< they are small, stored as the run's type, and trained
  double asked = 1;             ///< of them, TensorSpec's
  bool uneven = false;          ///< each of them has a share of its own, the second 1
  std::string subspace = {};    ///< of matrices in layers, which are trained in subspaces of `rank` and `nonzeros`
  std::uint64_t rank = 32, nonzeros = 4;
  bool published = false;                                           ///< of scattered projectors
  bool bf16_masters = false;                                        ///< of these matrices
  optim::RefitRule checks = {.check_every = 3, .threshold = 0.01};  ///< so that projectors are refitted again and again
  state::ComputeType type = state::ComputeType::bf16;
  std::optional<state::ComputeType> compute = {};  ///< Description's
  std::uint64_t virtual_ranks = 1;                 ///< the same
  bool shard_frozen = false;                       ///< the same
};

/// Frozen parts of such a model, all but a few tensors or none of some layers: what adapters and partial training
/// leave.
inline const std::vector<std::string> kFrozenParts = {
    "up|down|embed|head", "embed", "^layers\\.0|embed", "layers|norm", "down", "head|norm", "layers\\.[02]|embed|head"};

/// Every fifth without a head, every fourth without an embedding.
inline Shape random_shape(std::mt19937& random, int round) {
  Shape shape;
  shape.layers = 1 + static_cast<std::int64_t>(random() % 4);
  shape.head = round % 5 != 4;
  shape.tied = random() % 2 == 0;
  shape.embedding = round % 4 != 3;
  shape.micro_batches = 1 + random() % 2;
  shape.tokens = 32;
  return shape;
}

/// Shares of experts that other steps ask for in each layer; every step asks for the second.
inline std::vector<double> uneven_shares(std::int64_t experts, std::int64_t layer) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < experts; ++i) out.push_back(1.0 / static_cast<double>(2 + (3 * i + layer) % experts));
  out.at(1) = 1;
  return out;
}

inline Description describe(const Shape& shape) {
  Description out;
  const auto name = [](std::int64_t i, const char* what) { return "layers." + std::to_string(i) + "." + what; };
  if (shape.embedding) {
    out.blocks.push_back({"embed", state::BlockRole::embedding, {{"embed", {shape.vocabulary, shape.hidden}, true}}});
  }
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    out.blocks.push_back({"layer",
                          state::BlockRole::layer,
                          {{name(i, "up"), {shape.ffn, shape.hidden}, true},
                           {name(i, "down"), {shape.hidden, shape.ffn}, true},
                           {name(i, "norm"), {shape.hidden}, false}}});
    if (shape.experts == 0) continue;
    out.blocks.back().tensors.push_back({.name = name(i, "experts"),
                                         .shape = {shape.experts, 512, 256},
                                         .training = state::Training::frozen,
                                         .form = shape.packed_as,
                                         .pieces = static_cast<std::uint64_t>(shape.experts),
                                         .apart = true,
                                         .asked = shape.asked});
    if (shape.trains_experts) {
      auto& experts = out.blocks.back().tensors.back();
      experts.shape = {shape.experts, 64, 64};
      experts.decay = true;
      experts.training = state::Training::full;
      experts.form = state::Form::as_run;
    }
    if (shape.uneven) out.blocks.back().tensors.back().asked_by_piece = uneven_shares(shape.experts, i);
  }
  out.blocks.push_back({"norm", state::BlockRole::layer, {{"norm", {shape.hidden}, false}}});
  if (shape.head && !shape.tied) {
    out.blocks.push_back({"head", state::BlockRole::head, {{"head", {shape.vocabulary, shape.hidden}, true}}});
  }
  out.tied_head = shape.head && shape.tied && shape.embedding;
  out.hidden_size = static_cast<std::uint64_t>(shape.hidden);
  out.tokens = shape.tokens;
  out.micro_batches = shape.micro_batches;
  out.chunk_elements = shape.chunk_elements;
  const std::regex frozen(shape.frozen), in_fp32(shape.fp32), packed(shape.packed), subspace(shape.subspace);
  for (auto& block : out.blocks) {
    for (auto& tensor : block.tensors) {
      if (tensor.pieces > 0) continue;
      const bool is = !shape.frozen.empty() && std::regex_search(tensor.name, frozen);
      tensor.training = is ? state::Training::frozen : state::Training::full;
      const bool inside = block.role == state::BlockRole::layer && !shape.fp32.empty();
      const bool is_fp32 = inside && std::regex_search(tensor.name, in_fp32);
      if (is_fp32) tensor.form = state::Form::fp32;
      const bool matrix = block.role == state::BlockRole::layer && tensor.shape.size() == 2;
      if (is && matrix && !is_fp32 && !shape.packed.empty() && std::regex_search(tensor.name, packed)) {
        tensor.form = shape.packed_as;
      }
      if (is || !matrix || is_fp32 || shape.subspace.empty() || !std::regex_search(tensor.name, subspace)) continue;
      tensor.training = state::Training::reduced;
      if (shape.bf16_masters) tensor.form = state::Form::bf16_master;
      tensor.rank = shape.rank;
      tensor.nonzeros = shape.nonzeros;
      if (shape.published) tensor.reduction = &optim::lsp_published;
    }
  }
  out.refits = shape.checks;
  out.weight_dtype = shape.type;
  out.compute_dtype = shape.compute;
  out.virtual_ranks = shape.virtual_ranks;
  out.shard_frozen = shape.shard_frozen;
  out.optimizer = shape.optimizer;
  out.state_format = shape.format;
  out.seed = 42;
  return out;
}

/// Some parts are frozen, but not all.
inline void freeze_some(Shape& shape, std::mt19937& random) {
  do {
    shape.frozen = kFrozenParts[random() % kFrozenParts.size()];
  } while (describe(shape).layout().trainable_parameters() == 0);
}

}  // namespace spillway::plan::test
