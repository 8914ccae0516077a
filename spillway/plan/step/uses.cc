#include "spillway/plan/step/uses.h"

#include <algorithm>
#include <numeric>

namespace spillway::plan::step {
namespace {

SharedUse between(Operand as, Index first, Index last) {
  SharedUse out{as, {}};
  if (first == kNone) return out;
  out.passes.resize(last - first + 1);
  std::iota(out.passes.begin(), out.passes.end(), first);
  return out;
}

}  // namespace

std::vector<ActivationUse> boundaries_of(const StepOrder& order) {
  std::vector<ActivationUse> out;
  for (Index i = 0; i < order.layers.size(); ++i) {
    auto& it = out.emplace_back(
        ActivationUse{.what = {ObjectKind::boundary, i}, .read = order.forward[i], .needed = order.backward[i]});
    if (i > 0) {
      it.made = order.forward[i - 1];
    } else if (order.embedding.empty()) {  // the caller makes it, in the pass that reads it
      it.made = order.forward[0];
      it.as_made = Operand::input;
    } else {
      it.made = order.embedding.front();
      it.as_made = Operand::gathered_rows;
    }
  }
  return out;
}

ActivationUse last_boundary_of(const StepOrder& order) {
  const auto made = order.forward.back();
  const auto needed = order.head != kNone    ? order.head_gradient.back()
                      : order.any_backward() ? order.backward.back()
                                             : made;
  return {.what = {ObjectKind::boundary, static_cast<Index>(order.layers.size())},
          .made = made,
          .needed = needed,
          .as_read = order.head != kNone ? Operand::input : Operand::output};
}

std::vector<ActivationUse> saved_of(const StepOrder& order, const SavedPlacement& saved) {
  std::vector<ActivationUse> out;
  for (auto i = order.lowest; i < order.layers.size(); ++i) {
    if (saved.of(order.layers[i]) != Saved::spill) continue;
    out.push_back({.what = {ObjectKind::saved, i},
                   .made = order.forward[i],
                   .needed = order.backward[i],
                   .as_made = Operand::saved,
                   .as_read = Operand::saved});
  }
  return out;
}

ActivationUse features_of(const StepOrder& order) {
  return {.what = {ObjectKind::features, 0},
          .made = order.forward.front(),
          .needed = order.backward.front(),
          .as_made = Operand::features,
          .as_read = Operand::features};
}

SharedUse hidden_gradient_of(const StepOrder& order) {
  return between(Operand::hidden_gradient, order.first_differentiated(), order.last_differentiated());
}

SharedUse head_sums_of(const StepOrder& order) {
  if (order.head == kNone) return {Operand::head_sums, {}};
  const auto last = order.any_backward() ? order.backward.back() : order.head_gradient.back();
  return between(Operand::head_sums, order.head_gradient.front(), last);
}

std::vector<WeightUse> weights_of(const StepOrder& order, const state::Layout& layout) {
  std::vector<WeightUse> out;
  const auto changed_end = [](const state::Block& block) {
    return static_cast<Index>(block.first_chunk + block.trainable_chunks);
  };
  const auto slice_of = [&](Index b, Index s) {
    const auto& block = layout.blocks()[b];
    return WeightUse{{{static_cast<Index>(block.first_chunk) + s, 1}}, {}, changed_end(block)};
  };
  for (std::size_t i = 0; i < order.layers.size(); ++i) {
    const auto& block = layout.blocks()[order.layers[i]];
    auto& it = out.emplace_back(WeightUse{weight_objects(layout, block), {order.forward[i]}, changed_end(block)});
    if (order.backward[i] != kNone) it.passes.push_back(order.backward[i]);
  }
  for (Index s = 0; s < order.embedding.size(); ++s) {
    out.push_back(slice_of(order.embedding_block, s));
    out.back().passes = {order.embedding[s]};
  }
  const bool tied = order.head != kNone && order.head == order.embedding_block;
  const auto first_slice = out.size() - order.embedding.size();
  for (Index s = 0; s < order.head_loss.size(); ++s) {
    if (!tied) out.push_back(slice_of(order.head, s));
    auto& passes = tied ? out[first_slice + s].passes : out.back().passes;
    passes.push_back(order.head_loss[s]);
    passes.push_back(order.head_gradient[order.head_gradient.size() - 1 - s]);
  }
  return out;
}

std::vector<GradientUse> gradients_of(const StepOrder& order, const state::Layout& layout) {
  std::vector<GradientUse> out;
  const auto& blocks = layout.blocks();
  if (order.head != kNone && blocks[order.head].trainable_chunks > 0) {
    for (Index s = 0; s < blocks[order.head].chunks; ++s) {
      out.push_back({{static_cast<Index>(blocks[order.head].first_chunk) + s, 1},
                     order.head_gradient[order.head_gradient.size() - 1 - s]});
    }
  }
  for (auto i = order.lowest; i < order.layers.size(); ++i) {
    const auto& block = blocks[order.layers[i]];
    const Range chunks{static_cast<Index>(block.first_chunk), static_cast<Index>(block.trainable_chunks)};
    if (chunks.count > 0) out.push_back({chunks, order.backward[i]});
  }
  return out;
}

SharedUse row_sums_of(const StepOrder& order) {
  SharedUse out{Operand::row_sums, {}};
  if (order.embedding_backward == kNone) return out;
  if (order.head == order.embedding_block) out.passes = order.head_gradient;
  out.passes.push_back(order.embedding_backward);
  return out;
}

std::vector<UpdateUse> uses_of_update(const Description& description, const state::Layout& layout, Index chunk) {
  const bool dense = has_dense_grad(description, layout, chunk);
  const bool by_rows = traits(layout.blocks()[layout.chunks()[chunk].block].role).is_gathered;
  return {{ObjectKind::weight, Access::change},
          {ObjectKind::state, Access::change},
          {ObjectKind::gradient, !by_rows ? Access::read
                                 : dense  ? Access::add
                                          : Access::make}};
}

bool has_use(const std::vector<UpdateUse>& uses, ObjectKind what, Access access) {
  return std::ranges::find(uses, UpdateUse{what, access}) != uses.end();
}

}  // namespace spillway::plan::step
