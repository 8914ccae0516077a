#include "spillway/plan/device_memory.h"

#include <algorithm>

namespace spillway::plan {
namespace {

constexpr double kSum = 4;  ///< bytes of an fp32 sum of gradients

double piece(const ModelSizes& model) {
  return std::min(kPiece, model.layer);
}

double border(const ModelSizes& model, const DeviceWork& work) {
  return work.tokens() * model.hidden * model.weight;
}

/// Logits of some tokens in fp32 and their gradient in the compute type, by slices of the vocabulary or of the
/// sequence.
double head_bytes(const ModelSizes& model, const DeviceWork& work) {
  const auto rows = std::min(kHeadSlice, work.tokens());
  return rows * model.vocabulary * (4 + model.weight) + kPiece * (model.weight + kSum);
}

double staging(const ModelSizes& model) {
  return kPiecesInFlight * piece(model) * (model.weight + model.state + model.grad);
}

}  // namespace

double sum_of(const ByClass& classes) {
  double sum = 0;
  for (const auto& [name, bytes] : classes) sum += bytes;
  return sum;
}

double work_bytes_per_token(const ModelSizes& model, const DeviceWork& work) {
  const auto attention = static_cast<double>(work.query + 2 * work.key);
  return model.weight * (10 * model.hidden + 2 * attention + 5 * static_cast<double>(work.feed_forward));
}

ByClass device_memory(const ModelSizes& model, const DeviceWork& work) {
  return {{"weights in flight", kWeightWindow * model.layer * model.weight},
          {"gradients in flight", model.layer * (model.learning * kSum + model.grad)},
          {"working set", work.tokens() * work_bytes_per_token(model, work)},
          {"activations in flight", 4 * border(model, work)},
          {"head", head_bytes(model, work)}};
}

ByClass host_memory(const ModelSizes& model, const DeviceWork& work, double devices, bool paths) {
  ByClass out{{"interpreter and libraries", kProcess * devices},
              {"gradients in flight", kWeightWindow * model.layer * model.grad},
              {"activations in flight", 4 * border(model, work) * devices}};
  if (paths) {
    out["staging"] = staging(model);
    out["weights in flight"] = kWeightWindow * model.layer * model.weight;
  }
  return out;
}

ByClass host_only_memory(const ModelSizes& model, const DeviceWork& work, bool paths) {
  auto out = host_memory(model, work, 1, paths);
  const auto device = device_memory(model, work);
  for (const auto* name : {"working set", "head"}) out[name] = device.at(name);
  out["gradients in flight"] = device.at("gradients in flight");
  return out;
}

}  // namespace spillway::plan
