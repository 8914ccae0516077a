#include "spillway/plan/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "spillway/base/error.h"
#include "spillway/plan/requests.h"

namespace spillway::plan {
namespace {

using nlohmann::json;

json parse(const std::string& input, const char* what) {
  auto out = json::parse(input, nullptr, false);
  if (out.is_discarded() || !out.is_object()) throw Error(ErrorCode::bad_input, text(what, " is not a JSON object"));
  return out;
}

template <class T>
T get(const json& object, const char* key, std::optional<T> fallback = std::nullopt) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) {
    if (fallback) return *fallback;
    throw Error(ErrorCode::bad_input, text("the key ", key, " is missing"));
  }
  try {
    return at->get<T>();
  } catch (const json::exception&) {
    throw Error(ErrorCode::bad_input,
                text("the key ", key, " has the value ", at->dump(), ", which has the wrong type"));
  }
}

std::uint64_t count(const json& object, const char* key, std::optional<double> fallback = std::nullopt) {
  const auto value = get<double>(object, key, fallback);
  if (!(value >= 0) || value > 1e18) {
    throw Error(ErrorCode::bad_input, text("the key ", key, " has the value ", value, "; it must be 0 or more"));
  }
  return static_cast<std::uint64_t>(value);
}

/// The form of a tensor; as_run where nothing is said.
state::Form parse_form(const json& tensor) {
  if (get<bool>(tensor, "wide", false)) return state::Form::fp32;
  if (get<bool>(tensor, state::word_of(state::Form::bf16_master), false)) return state::Form::bf16_master;
  const auto name = get<std::string>(tensor, "form", "");
  return name.empty() ? state::Form::as_run : state::parse_packed_form(name);
}

void parse_reduced(const json& tensor, const optim::Reduction& reduction, state::TensorSpec& out) {
  const auto reduced = tensor.find(reduction.word);
  if (reduced == tensor.end() || reduced->is_null()) return;
  out.training = state::Training::reduced;
  out.rank = count(*reduced, "rank");
  out.nonzeros = count(*reduced, "nonzeros");
  out.by = &reduction;
}

state::BlockSpec parse_block(const json& object) {
  state::BlockSpec out{get<std::string>(object, "name"), state::parse_role(get<std::string>(object, "role")), {}};
  for (const auto& tensor : get<json>(object, "tensors")) {
    out.tensors.push_back({get<std::string>(tensor, "name"), get<std::vector<std::int64_t>>(tensor, "shape"),
                           get<bool>(tensor, "decay", false),
                           get<bool>(tensor, "frozen", false) ? state::Training::frozen : state::Training::full});
    out.tensors.back().form = parse_form(tensor);
    out.tensors.back().table = get<bool>(tensor, "table", false);
    out.tensors.back().pieces = count(tensor, "pieces", 0);
    out.tensors.back().apart = get<bool>(tensor, "apart", false);
    out.tensors.back().asked = get<double>(tensor, "asked", 1);
    out.tensors.back().asked_by_piece = get<std::vector<double>>(tensor, "asked_by_piece", std::vector<double>());
    for (const auto* reduction : optim::reductions()) parse_reduced(tensor, *reduction, out.tensors.back());
  }
  return out;
}

optim::RefitRule parse_refits(const json& object) {
  optim::RefitRule out;
  out.check_every = count(object, "check_every", static_cast<double>(out.check_every));
  out.threshold = get<double>(object, "threshold", out.threshold);
  out.rotate_every = count(object, "rotate", 0);
  return out;
}

}  // namespace

Description parse_description(const std::string& input) {
  const auto object = parse(input, "the model description");
  Description out;
  const auto computes = get<std::string>(object, "compute_dtype");
  out.weight_dtype = state::parse_weight_type(get<std::string>(object, "weight_dtype", computes));
  out.compute_dtype = state::parse_compute_type(computes);
  out.optimizer = &optim::parse(get<std::string>(object, "optimizer", "adamw"));
  out.state_format = state::parse_format(get<std::string>(object, "state_format", "exact"));
  out.seed = get<std::uint64_t>(object, "seed", 0);
  for (const auto& block : get<json>(object, "blocks")) out.blocks.push_back(parse_block(block));
  out.tied_head = get<bool>(object, "tied_head", false);
  out.hidden_size = count(object, "hidden_size");
  out.tokens = count(object, "tokens");
  out.feature_bytes = count(object, "feature_bytes", 0);
  out.micro_batches = std::max<std::uint64_t>(1, count(object, "micro_batches"));
  out.accumulation = count(object, "accumulation", 0);
  out.virtual_ranks = std::max<std::uint64_t>(1, count(object, "virtual_ranks", 1));
  out.shard_frozen = get<bool>(object, "shard_frozen", false);
  out.world.size = std::max<std::uint64_t>(1, count(object, "world", 1));
  out.world.rank = count(object, "rank", 0);
  const auto machines = std::max<std::uint64_t>(1, count(object, "machines", 1));
  out.world.local = out.world.size % machines == 0 ? out.world.size / machines : 1;
  out.step_tokens = count(object, "step_tokens", 0);
  out.chunk_elements = count(object, "chunk_elements", static_cast<double>(state::kDefaultChunkElements));
  for (const auto* reduction : optim::reductions()) {
    const auto own = get<json>(object, text(reduction->word, "s").c_str(), json::object());
    if (!own.empty()) out.refits = parse_refits(own);
  }
  check_description(out);
  return out;
}

namespace {

json json_of(const state::TensorSpec& tensor) {
  json out{{"name", tensor.name}, {"shape", tensor.shape}, {"decay", tensor.decay}};
  if (tensor.training == state::Training::frozen) out["frozen"] = true;
  const std::string form = state::name_of(tensor.form);
  if (state::is_packed(tensor.form)) out["form"] = form;
  if (!state::is_packed(tensor.form) && !form.empty()) out[form] = true;
  if (tensor.pieces > 0) out["pieces"] = tensor.pieces;
  if (tensor.apart) out["apart"] = true;
  if (tensor.asked != 1) out["asked"] = tensor.asked;
  if (!tensor.asked_by_piece.empty()) out["asked_by_piece"] = tensor.asked_by_piece;
  if (tensor.table) out["table"] = true;
  if (tensor.training == state::Training::reduced) {
    out[tensor.by->word] = {{"rank", tensor.rank}, {"nonzeros", tensor.nonzeros}};
  }
  return out;
}

json json_of(const state::BlockSpec& block) {
  json out{{"name", block.name}, {"role", state::name_of(block.role)}, {"tensors", json::array()}};
  for (const auto& tensor : block.tensors) out["tensors"].push_back(json_of(tensor));
  return out;
}

}  // namespace

std::string to_json(const Description& description) {
  json out{{"compute_dtype", state::name_of(description.computes())},
           {"weight_dtype", state::name_of(description.weight_dtype)},
           {"optimizer", description.optimizer->name},
           {"state_format", state::name_of(description.state_format)},
           {"seed", description.seed},
           {"hidden_size", description.hidden_size},
           {"micro_batches", description.micro_batches},
           {"accumulation", description.accumulation},
           {"virtual_ranks", description.virtual_ranks},
           {"tokens", description.tokens},
           {"tied_head", description.tied_head},
           {"blocks", json::array()}};
  if (description.shard_frozen) out["shard_frozen"] = true;
  if (description.feature_bytes > 0) out["feature_bytes"] = description.feature_bytes;
  for (const auto& block : description.blocks) {
    out["blocks"].push_back(json_of(block));
    for (const auto& tensor : block.tensors) {
      if (tensor.training != state::Training::reduced) continue;
      const auto& refits = description.refits;
      out[text(tensor.by->word, "s")] = {
          {"check_every", refits.check_every}, {"threshold", refits.threshold}, {"rotate", refits.rotate_every}};
    }
  }
  if (description.chunk_elements != state::kDefaultChunkElements) out["chunk_elements"] = description.chunk_elements;
  if (!description.is_shared()) return out.dump(2);
  const auto& world = description.world;
  out.update({{"world", world.size},
              {"rank", world.rank},
              {"machines", world.machines()},
              {"step_tokens", description.step_tokens}});
  return out.dump(2);
}

}  // namespace spillway::plan
