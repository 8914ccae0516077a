#include "spillway/machine/compute_json.h"

namespace spillway::machine {
namespace {

constexpr double kMostCall = 1;  ///< seconds

Json json_of(const ProductRate& rate) {
  return {{"tokens", rate.tokens},
          {"inner", rate.inner},
          {"outer", rate.outer},
          {"forward_flops_per_second", rate.forward_flops_per_second},
          {"input_flops_per_second", rate.input_flops_per_second},
          {"weight_flops_per_second", rate.weight_flops_per_second}};
}

Json json_of(const AttentionRate& rate) {
  Json out = Json::object();
  out["tokens"] = rate.tokens;
  put(out, "head_size", rate.head_size);
  out["forward_flops_per_second"] = rate.forward_flops_per_second;
  out["backward_flops_per_second"] = rate.backward_flops_per_second;
  return out;
}

Json json_of(const OperationRate& rate) {
  return {{"operation", rate.operation},
          {"strided", rate.strided},
          {"bytes", rate.bytes},
          {"bytes_per_second", rate.bytes_per_second}};
}

template <class Entry>
Json entries_of(const std::vector<Entry>& entries) {
  Json out = Json::array();
  for (const auto& entry : entries) out.push_back(json_of(entry));
  return out;
}

ProductRate product_from(const JsonObject& object) {
  object.refuse_others(
      {"tokens", "inner", "outer", "forward_flops_per_second", "input_flops_per_second", "weight_flops_per_second"});
  const auto size = [&](const char* key) { return static_cast<std::uint64_t>(object.positive(key, kMostBytes)); };
  return {size("tokens"),
          size("inner"),
          size("outer"),
          object.positive("forward_flops_per_second", kMostRate),
          object.positive("input_flops_per_second", kMostRate),
          object.positive("weight_flops_per_second", kMostRate)};
}

AttentionRate attention_from(const JsonObject& object) {
  object.refuse_others({"tokens", "head_size", "forward_flops_per_second", "backward_flops_per_second"});
  return {static_cast<std::uint64_t>(object.positive("tokens", kMostBytes)),
          object.positive("forward_flops_per_second", kMostRate),
          object.positive("backward_flops_per_second", kMostRate),
          object.has("head_size") ? object.whole("head_size", kMostBytes) : 0};
}

OperationRate operation_from(const JsonObject& object) {
  object.refuse_others({"operation", "strided", "bytes", "bytes_per_second"});
  return {object.word("operation"), object.flag("strided"),
          static_cast<std::uint64_t>(object.positive("bytes", kMostBytes)),
          object.positive("bytes_per_second", kMostTransfer)};
}

}  // namespace

Json json_of(const ComputeProfile& compute) {
  Json out = {{"dtype", compute.dtype},
              {"products", entries_of(compute.products)},
              {"attention", entries_of(compute.attention)},
              {"elementwise_bytes_per_second", compute.elementwise_bytes_per_second}};
  if (!compute.operations.empty()) out["operations"] = entries_of(compute.operations);
  put(out, "call_seconds", compute.call_seconds);
  put(out, "libraries_bytes", compute.libraries_bytes);
  return out;
}

ComputeProfile compute_from(const JsonObject& object) {
  object.refuse_others({"dtype", "products", "attention", "elementwise_bytes_per_second", "operations", "call_seconds",
                        "libraries_bytes"});
  ComputeProfile out;
  out.dtype = object.word("dtype");
  if (out.dtype != "bf16" && out.dtype != "fp16" && out.dtype != "fp32") {
    object.refuse("dtype", text("is ", out.dtype, "; known: bf16, fp16, fp32"));
  }
  out.products = list_from(object, "products", product_from);
  if (out.products.empty()) object.refuse("products", "is empty");
  out.attention = list_from(object, "attention", attention_from);
  out.elementwise_bytes_per_second = object.optional("elementwise_bytes_per_second", kMostTransfer);
  out.operations = list_from(object, "operations", operation_from);
  out.call_seconds = object.optional("call_seconds", kMostCall);
  if (object.has("libraries_bytes")) out.libraries_bytes = object.whole("libraries_bytes", kMostBytes);
  return out;
}

}  // namespace spillway::machine
