#include "spillway/plan/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "spillway/base/error.h"
#include "spillway/base/field_json.h"
#include "spillway/plan/description_fields.h"
#include "spillway/plan/requests.h"

// Keys below have another shape in the file than in the structs. Runs of earlier releases have such files, so both
// stay.
namespace spillway {
namespace {

constexpr const char* kFormKey = "form";

std::uint64_t read_count(const JsonValue& from, const char* key, std::uint64_t fallback) {
  return from.has(key) ? from.at(key).read_number<std::uint64_t>(kMostNumber) : fallback;
}

bool read_flag(const JsonValue& from, const char* key) {
  return from.has(key) && from.at(key).read_flag();
}

/// A form that is not packed is a flag of its name; none of them: as_run.
state::Form read_form(const JsonValue& from) {
  for (const auto form : {state::Form::fp32, state::Form::bf16_master}) {
    if (read_flag(from, state::name_of(form))) return form;
  }
  return from.has(kFormKey) ? state::parse_packed_form(from.at(kFormKey).read_text()) : state::Form::as_run;
}

}  // namespace

/// The key of a matrix's reduction is its word.
template <>
inline constexpr auto kAfterWrite<state::TensorSpec> = [](nlohmann::json& json, const state::TensorSpec& it) {
  if (it.training == state::Training::frozen) json["frozen"] = true;
  if (it.training == state::Training::reduced)
    json[it.reduction->word] = {{"rank", it.rank}, {"nonzeros", it.nonzeros}};
  const std::string form = state::name_of(it.form);
  if (state::is_packed(it.form)) {
    json[kFormKey] = form;
  } else if (!form.empty()) {
    json[form] = true;
  }
};
template <>
inline constexpr auto kAfterRead<state::TensorSpec> = [](state::TensorSpec& out, const JsonValue& from) {
  if (read_flag(from, "frozen")) out.training = state::Training::frozen;
  out.form = read_form(from);
  for (const auto* reduction : optim::reductions()) {
    if (!from.has(reduction->word)) continue;
    const auto reduced = from.at(reduction->word);
    reduced.require_object();
    out.training = state::Training::reduced;
    out.rank = reduced.at("rank").read_number<std::uint64_t>(kMostNumber);
    out.nonzeros = reduced.at("nonzeros").read_number<std::uint64_t>(kMostNumber);
    out.reduction = reduction;
  }
};

/// Python has the role as an enumerator.
template <>
inline constexpr auto kAfterWrite<state::BlockSpec> =
    [](nlohmann::json& json, const state::BlockSpec& it) { json["role"] = state::name_of(it.role); };
template <>
inline constexpr auto kAfterRead<state::BlockSpec> =
    [](state::BlockSpec& out, const JsonValue& from) { out.role = state::parse_role(from.at("role").read_text()); };

template <>
inline constexpr auto kAfterWrite<optim::RefitRule> =
    [](nlohmann::json& json, const optim::RefitRule& it) { json["rotate"] = it.rotate_every; };
template <>
inline constexpr auto kAfterRead<optim::RefitRule> = [](optim::RefitRule& out, const JsonValue& from) {
  out.rotate_every = read_count(from, "rotate", out.rotate_every);
};

/// The world's numbers are keys beside the others, and the file of a run of one process has none of them. The rule of
/// refits is called by the reduction.
template <>
inline constexpr auto kAfterWrite<plan::Description> = [](nlohmann::json& json, const plan::Description& it) {
  for (const auto& block : it.blocks) {
    for (const auto& tensor : block.tensors) {
      if (tensor.training == state::Training::reduced) json[text(tensor.reduction->word, "s")] = make_json(it.refits);
    }
  }
  if (!it.is_shared()) return;
  json.update({{"world", it.world.size},
               {"rank", it.world.rank},
               {"machines", it.world.machines()},
               {"step_tokens", it.step_tokens}});
};
template <>
inline constexpr auto kAfterRead<plan::Description> = [](plan::Description& out, const JsonValue& from) {
  if (!from.has("weight_dtype")) out.weight_dtype = state::parse_weight_type(state::name_of(out.computes()));
  for (const auto* reduction : optim::reductions()) {
    if (const auto key = text(reduction->word, "s"); from.has(key)) read_json(out.refits, from.at(key));
  }
  out.micro_batches = std::max<std::uint64_t>(1, out.micro_batches);
  out.virtual_ranks = std::max<std::uint64_t>(1, out.virtual_ranks);
  out.world.size = std::max<std::uint64_t>(1, read_count(from, "world", 1));
  out.world.rank = read_count(from, "rank", 0);
  const auto machines = std::max<std::uint64_t>(1, read_count(from, "machines", 1));
  out.world.local = out.world.size % machines == 0 ? out.world.size / machines : 1;
  out.step_tokens = read_count(from, "step_tokens", 0);
};

}  // namespace spillway

namespace spillway::plan {

Description parse_description(const std::string& input) {
  const auto json = nlohmann::json::parse(input, nullptr, false);
  const JsonFile file{.name = "model description"};
  const JsonValue from(json, file);
  if (!json.is_object()) from.refuse("is not a JSON object");
  Description out;
  read_json(out, from);
  check_description(out);
  return out;
}

std::string to_json(const Description& description) {
  return make_json(description).dump(2);
}

}  // namespace spillway::plan
