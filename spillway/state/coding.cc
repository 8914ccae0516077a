#include "spillway/state/coding.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/state/decoders.h"

namespace spillway::state {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kModelConfig = "config.json";
constexpr const char* kCodingSettings = "quantization_config";

std::string string_of(const Json& settings, const char* key, const std::string& otherwise = "") {
  const auto found = settings.find(key);
  return found != settings.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

bool is_set(const Json& settings, const char* key) {
  const auto found = settings.find(key);
  return found != settings.end() && found->is_boolean() && found->get<bool>();
}

std::string method_in(const Json& settings) {
  const bool of_bitsandbytes = is_set(settings, "load_in_4bit") || is_set(settings, "load_in_8bit");
  const auto method = string_of(settings, "quant_method", of_bitsandbytes ? "bitsandbytes" : "");
  return method.empty() ? string_of(settings, "format", "a format without a name") : method;
}

// Which codes of a method are not read, for a person; empty where all is read.

std::string refuse_bitsandbytes(const Json& settings, Coding& /*coding*/) {
  if (!is_set(settings, "load_in_4bit")) return "8 bits";
  const auto type = string_of(settings, "bnb_4bit_quant_type", "fp4");
  return type == "nf4" ? "" : type;
}

std::string refuse_fp8(const Json& settings, Coding& coding) {
  const auto format = string_of(settings, "fmt", "e4m3");
  if (format != "e4m3") return format;
  const auto block = settings.find("weight_block_size");
  if (block == settings.end() || block->is_null()) return "";
  const bool fits =
      block->is_array() && block->size() == 2 && (*block)[0].is_number_unsigned() && (*block)[1].is_number_unsigned();
  if (!fits) return "a weight_block_size that is no pair of numbers";
  coding.block_rows = (*block)[0].get<std::uint64_t>();
  coding.block_columns = (*block)[1].get<std::uint64_t>();
  return "";
}

std::string refuse_nothing(const Json& /*settings*/, Coding& /*coding*/) {
  return "";
}

}  // namespace

struct CodingKind {
  std::string_view method;               ///< quant_method in config.json
  std::string_view name;                 ///< for a person
  std::string_view form;                 ///< that packs what is decoded into the same codes; empty: none does
  std::string_view codes;                ///< end of the name of a weight's codes, after the weight's own name
  std::string_view mark;                 ///< end of the name of a part that every coded weight has
  std::vector<std::string_view> parts;   ///< of the others
  std::vector<std::string_view> unread;  ///< names beside a weight, in its module, that are about activations
  std::string (*refuse)(const Json&, Coding&);
  MakeDecoder make;
};

namespace {

const std::array<CodingKind, 3>& coding_kinds() {
  static const std::array<CodingKind, 3> kKinds{{
      {"bitsandbytes",
       "NF4 of bitsandbytes",
       "nf4",
       "",
       kNf4State,
       {kAbsmax, kQuantMap, kNestedAbsmax, kNestedMap},
       {},
       refuse_bitsandbytes,
       make_nf4},
      {"fp8",
       "FP8 e4m3 with block scales",
       "",
       "",
       kInverseScales,
       {},
       {"activation_scale", "input_scale"},
       refuse_fp8,
       make_fp8},
      {"mxfp4", "MXFP4", "", "_blocks", kBlockScales, {}, {}, refuse_nothing, make_mxfp4},
  }};
  return kKinds;
}

[[noreturn]] void refuse_codes(const std::string& file, const std::string& method, const std::string& which) {
  throw Error(ErrorCode::bad_input,
              text(file, ": the weights are quantised (", method, which.empty() ? "" : ", ", which,
                   "), and such weights are not read; name the unquantised release that they were made from; with "
                   "method lora, load_in_4bit or load_in_8bit quantises its base here"),
              0, file);
}

/// Names of the weights that are coded, and names that decoding takes away.
template <class Names>
std::pair<std::vector<std::string>, std::set<std::string>> sort_names(const CodingKind& kind, const Names& has,
                                                                      const std::vector<std::string>& names) {
  std::pair<std::vector<std::string>, std::set<std::string>> out;
  auto& [weights, gone] = out;
  for (const auto& name : names) {
    if (!name.ends_with(kind.mark)) continue;
    const auto weight = name.substr(0, name.size() - kind.mark.size());
    const auto codes = weight + std::string(kind.codes);
    if (!has(codes)) continue;
    weights.push_back(weight);
    gone.insert({codes, name});
    for (const auto part : kind.parts) gone.insert(weight + std::string(part));
    const auto module = weight.substr(0, weight.rfind('.') + 1);
    for (const auto other : kind.unread) gone.insert(module + std::string(other));
  }
  return out;
}

/// Text of a file of at most as many bytes as a configuration may have; "" where it cannot be read.
std::string config_text(const fs::path& file) {
  constexpr std::uintmax_t kMost = 64 << 20;
  std::error_code error;
  if (const auto size = fs::file_size(file, error); error || size > kMost) return {};
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What a configuration, or that of its text tower, says of codes; null: nothing.
Json settings_in(const Json& config) {
  for (const auto& part : {config, config.value("text_config", Json())}) {
    if (part.is_object() && part.contains(kCodingSettings) && part[kCodingSettings].is_object())
      return part[kCodingSettings];
  }
  return {};
}

Coding parse_settings(const Json& settings, const std::string& file) {
  const auto method = method_in(settings);
  const auto found = std::ranges::find(coding_kinds(), method, &CodingKind::method);
  if (found == coding_kinds().end()) refuse_codes(file, method, "");
  Coding out{&*found};
  if (const auto unread = found->refuse(settings, out); !unread.empty()) refuse_codes(file, method, unread);
  return out;
}

}  // namespace

Coding parse_coding(std::string_view settings, const std::string& file) {
  const auto parsed = Json::parse(settings, nullptr, false);
  return parse_settings(parsed.is_object() ? parsed : Json::object(), file);
}

std::optional<Coding> find_coding(const fs::path& directory) {
  const auto file = directory / kModelConfig;
  const auto config = Json::parse(config_text(file), nullptr, false);
  if (!config.is_object()) return std::nullopt;
  const auto settings = settings_in(config);
  if (settings.is_null() || settings.empty()) return std::nullopt;
  return parse_settings(settings, file.string());
}

std::string_view name_of(const Coding& coding) {
  return coding.kind->name;
}

std::string_view form_of(const Coding& coding) {
  return coding.kind->form;
}

std::set<std::string> decoded_names(const Coding& coding, const std::set<std::string>& names) {
  const auto has = [&](const std::string& name) { return names.contains(name); };
  const auto [weights, gone] = sort_names(*coding.kind, has, {names.begin(), names.end()});
  std::set<std::string> out;
  std::ranges::set_difference(names, gone, std::inserter(out, out.end()));
  out.insert(weights.begin(), weights.end());
  return out;
}

CodedTensors::CodedTensors(const Coding& coding, Tensors& tensors, const std::vector<fs::path>& files, Read read) {
  const auto& kind = *coding.kind;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  const auto has = [&](const std::string& name) { return tensors.contains(name); };
  const auto [weights, gone] = sort_names(kind, has, names);
  std::map<std::string, StoredTensor> decoded;
  for (const auto& weight : weights) {
    CodedParts parts{weight, &tensors.at(weight + std::string(kind.codes))};
    parts.file = files[parts.codes->file].string();
    parts.more.emplace(kind.mark, &tensors.at(weight + std::string(kind.mark)));
    for (const auto part : kind.parts) {
      const auto found = tensors.find(weight + std::string(part));
      if (found != tensors.end()) parts.more.emplace(part, &found->second);
    }
    auto& decoder = *decoders_.emplace(weight, kind.make(coding, parts, read)).first->second;
    StoredTensor tensor{weight, "F32", decoder.shape(), 1, sizeof(float), parts.codes->file, parts.codes->offset};
    for (const auto size : tensor.shape) tensor.elements *= static_cast<std::uint64_t>(size);
    decoded.emplace(weight, std::move(tensor));
  }
  for (const auto& name : gone) tensors.erase(name);
  tensors.merge(decoded);
}

CodedTensors::~CodedTensors() = default;

void CodedTensors::read(const std::string& name, std::uint64_t first, std::uint64_t count, float* out) const {
  if (count > 0) decoders_.at(name)->decode(first, count, out);
}

}  // namespace spillway::state
