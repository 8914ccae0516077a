#include "spillway/execute/asked_pieces.h"

#include <algorithm>

namespace spillway::execute {
namespace {

/// In memory of the host, or on a device.
bool is_in_memory(const plan::Residence& home) {
  return home.in_memory() || home.has_device_copy();
}

}  // namespace

AskedPieces::AskedPieces(const state::Layout& layout, const plan::Placement& placement, const WeightSlots& slots)
    : placement_(placement), slots_(slots), tensors_(layout.tensors().size()) {
  for (const auto& block : layout.blocks()) {
    bool is_listed = false;
    for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
      const auto& spec = layout.tensors()[t].spec;
      if (!spec.apart) continue;
      if (!is_listed) counts_.push_back({.block = block.name});
      is_listed = true;
      tensors_[t] = {.name = spec.name,
                     .count = counts_.size() - 1,
                     .pieces = std::vector<bool>(spec.pieces),
                     .chunks = std::vector<std::size_t>(spec.pieces),
                     .steps = std::vector<std::uint64_t>(spec.pieces)};
    }
  }
  for (const auto& chunk : layout.chunks()) {
    for (const auto& span : layout.spans(chunk.id)) {
      auto& of = tensors_[span.tensor];
      const auto piece = layout.tensors()[span.tensor].piece();
      if (!of.pieces.empty() && span.tensor_first % piece == 0) of.chunks[span.tensor_first / piece] = chunk.id;
    }
  }
}

void AskedPieces::begin_step(bool counts) {
  is_counting_ = counts;
  training_steps_ += counts ? 1 : 0;
  for (auto& tensor : tensors_) {
    std::fill(tensor.pieces.begin(), tensor.pieces.end(), false);
    tensor.any = false;
  }
}

void AskedPieces::add(std::size_t tensor, std::uint64_t first, std::uint64_t count) {
  auto& of = tensors_.at(tensor);
  if (!is_counting_ || of.pieces.empty()) return;
  auto& sum = counts_[of.count];
  if (!of.any) sum.pieces += of.pieces.size();
  of.any = true;
  const auto end = std::min<std::uint64_t>(first + count, of.pieces.size());
  for (auto i = first; i < end; ++i) {
    if (of.pieces[i]) continue;
    of.pieces[i] = true;
    of.steps[i] += 1;
    sum.asked += 1;
    sum.resident += is_in_memory(placement_[slots_.slot_of(of.chunks[i])].weight) ? 1 : 0;
    sum.planned += is_in_memory(placement_[of.chunks[i]].weight) ? 1 : 0;
  }
}

void AskedPieces::add_swap(std::size_t tensor) {
  ++counts_[tensors_.at(tensor).count].swaps;
}

std::vector<AskedPieces::Steps> AskedPieces::steps() const {
  std::vector<Steps> out;
  for (const auto& tensor : tensors_) {
    if (!tensor.pieces.empty()) out.push_back({tensor.name, tensor.steps});
  }
  return out;
}

}  // namespace spillway::execute
