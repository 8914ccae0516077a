#include "spillway/plan/operations.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace spillway::plan {
namespace {

Product product_of(const std::string& name) {
  return name == "input" ? Product::input : name == "weight" ? Product::weight : Product::forward;
}

PassOperations parse_pass(const nlohmann::json& object) {
  PassOperations out;
  for (const auto& it : object.at("products")) {
    out.products.push_back({.product = product_of(it.at("product").get<std::string>()),
                            .tokens = it.at("tokens").get<double>(),
                            .inner = it.at("inner").get<double>(),
                            .outer = it.at("outer").get<double>(),
                            .calls = it.at("calls").get<double>()});
  }
  for (const auto& it : object.at("attention")) {
    out.attention.push_back({.tokens = it.at("tokens").get<double>(),
                             .head_size = it.at("head_size").get<double>(),
                             .operations = it.at("operations").get<double>(),
                             .backward = it.at("backward").get<bool>(),
                             .calls = it.at("calls").get<double>()});
  }
  for (const auto& it : object.at("elements")) {
    out.elements.push_back({.operation = it.at("operation").get<std::string>(),
                            .strided = it.at("strided").get<bool>(),
                            .bytes = it.at("bytes").get<double>(),
                            .calls = it.at("calls").get<double>()});
  }
  out.calls = object.at("calls").get<double>();
  return out;
}

}  // namespace

TracedPasses parse_operations(const nlohmann::json& object) {
  TracedPasses out;
  for (const auto& [kind, pass] : object.items()) {
    out[kind] = {.each = parse_pass(pass.at("each")), .once = parse_pass(pass.at("once"))};
  }
  return out;
}

double attention_seconds(const PassOperations& pass, const ComputeRates& rates) {
  double out = 0;
  for (const auto& it : pass.attention) {
    out += it.calls * it.operations / rates.attention(it.tokens, it.backward, it.head_size);
  }
  return out;
}

double seconds_of(const PassOperations& pass, const ComputeRates& rates) {
  const auto calls = pass.calls * rates.call_seconds();
  double out = 0;
  for (const auto& it : pass.products) {
    const auto operations = 2 * it.tokens * it.inner * it.outer;
    out += it.calls * operations / rates.product(it.product, it.tokens, it.inner, it.outer);
  }
  out += attention_seconds(pass, rates);
  for (const auto& it : pass.elements) {
    out += it.calls * rates.operation_seconds(it.operation, it.strided, it.bytes);
  }
  return rates.runs_behind() ? std::max(out, calls) : out + calls;
}

double seconds_of(const TracedPasses& passes, const std::string& kind, double micro_batches,
                  const ComputeRates& rates) {
  const auto pass = passes.find(kind);
  if (pass == passes.end()) return 0;
  return micro_batches * seconds_of(pass->second.each, rates) + seconds_of(pass->second.once, rates);
}

}  // namespace spillway::plan
