#include "spillway/plan/compute_rates.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "spillway/base/error.h"

namespace spillway::plan {
namespace {

/// Shapes that are this near, in logarithms of their sizes, are the same.
constexpr double kSame = 1e-6;
/// Products whose results have rows that fill whole cache lines are this far, in the same, from those that do not.
constexpr double kRagged = 1;
constexpr std::uint64_t kLine = 16;  ///< elements
/// How many shapes say something of one in between.
constexpr std::size_t kNeighbours = 4;

/// The rate between points by their distances: the mean of the nearest ones' logarithms, each weighted by its
/// distance's square.
double between(std::vector<std::pair<double, double>> distances_and_rates) {
  auto& points = distances_and_rates;
  std::ranges::sort(points);
  if (points.front().first < kSame) return points.front().second;
  double weights = 0, sum = 0;
  for (std::size_t i = 0; i < std::min(kNeighbours, points.size()); ++i) {
    const auto weight = 1 / (points[i].first * points[i].first);
    weights += weight;
    sum += weight * std::log(points[i].second);
  }
  return std::exp(sum / weights);
}

machine::ProductRate alike(std::uint64_t tokens, std::uint64_t inner, std::uint64_t outer, double rate) {
  return {tokens, inner, outer, rate, rate, rate};
}

}  // namespace

ComputeRates ComputeRates::read_cpus(const machine::Profile& profile, state::ComputeType type) {
  ComputeRates out;
  const auto row = std::ranges::find(profile.compute, state::name_of(type), &machine::ComputeProfile::dtype);
  if (row != profile.compute.end()) {
    out.products_ = row->products;
    out.attention_ = row->attention;
    out.elementwise_ = row->elementwise_bytes_per_second;
    for (const auto& it : row->operations) {
      out.operations_[{it.operation, it.strided}][static_cast<double>(it.bytes)] = it.bytes_per_second;
    }
    out.call_ = row->call_seconds;
    out.libraries_ = row->libraries_bytes;
    return out;
  }
  for (const auto& layer : profile.layers) {
    const auto rate = traits(type).rounds ? layer.flops_per_second : layer.fp32_flops_per_second;
    if (rate > 0) out.products_.push_back(alike(layer.tokens, layer.hidden, layer.intermediate, rate));
  }
  if (out.products_.empty() && profile.compute_flops_per_second > 0) {
    out.products_.push_back(alike(1, 1, 1, profile.compute_flops_per_second));
  }
  if (!out.products_.empty()) return out;
  throw Error(ErrorCode::bad_input,
              text("the profile of ", profile.machine, " cannot be planned with: it has no GPU and ",
                   "compute_flops_per_second is 0"));
}

ComputeRates ComputeRates::read_gpu(const machine::GpuProfile& gpu) {
  ComputeRates out;
  out.products_.push_back(alike(1, 1, 1, gpu.flops_per_second));
  out.elementwise_ = gpu.elementwise_bytes_per_second;
  const auto rate = [&](double attention) { return attention > 0 ? attention : gpu.flops_per_second; };
  out.attention_.push_back({.tokens = 1,
                            .forward_flops_per_second = rate(gpu.attention_forward_flops_per_second),
                            .backward_flops_per_second = rate(gpu.attention_backward_flops_per_second)});
  out.call_ = gpu.call_seconds;
  out.behind_ = true;
  return out;
}

double ComputeRates::product(Product product, double tokens, double inner, double outer) const {
  std::vector<std::pair<double, double>> points;
  const auto ragged = std::fmod(outer, static_cast<double>(kLine)) != 0;
  for (const auto& it : products_) {
    const auto apart =
        std::hypot(std::log(static_cast<double>(it.tokens) / tokens), std::log(static_cast<double>(it.inner) / inner),
                   std::log(static_cast<double>(it.outer) / outer));
    const auto other = (it.outer % kLine != 0) != ragged;
    points.emplace_back(apart + (other ? kRagged : 0), product == Product::forward ? it.forward_flops_per_second
                                                       : product == Product::input ? it.input_flops_per_second
                                                                                   : it.weight_flops_per_second);
  }
  return between(std::move(points));
}

double ComputeRates::attention(double tokens, bool backward, double head) const {
  if (attention_.empty()) return product(Product::forward, tokens, tokens, tokens);
  std::vector<std::pair<double, double>> points;
  for (const auto& it : attention_) {
    const auto size = head > 0 && it.head_size > 0 ? std::log(static_cast<double>(it.head_size) / head) : 0;
    points.emplace_back(std::hypot(std::log(static_cast<double>(it.tokens) / tokens), size),
                        backward ? it.backward_flops_per_second : it.forward_flops_per_second);
  }
  return between(std::move(points));
}

double ComputeRates::operation_seconds(const std::string& operation, bool strided, double bytes) const {
  auto row = operations_.find({operation, strided});
  if (row == operations_.end()) row = operations_.find({operation, !strided});
  if (row == operations_.end()) return elementwise_seconds(bytes);
  const auto& rates = row->second;
  const auto above = rates.lower_bound(bytes);
  if (above == rates.begin()) return bytes / above->second;
  const auto below = std::prev(above);
  if (above == rates.end()) return bytes / below->second;
  const auto share = std::log(bytes / below->first) / std::log(above->first / below->first);
  return bytes / std::exp((1 - share) * std::log(below->second) + share * std::log(above->second));
}

}  // namespace spillway::plan
