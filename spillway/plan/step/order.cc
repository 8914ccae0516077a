#include "spillway/plan/step/order.h"

#include <algorithm>

namespace spillway::plan::step {

StepOrder::StepOrder(const Description& description, const state::Layout& layout, const Lookahead& lookahead,
                     bool device)
    : layout_(layout), lookahead_(lookahead), device_(device), updates_(layout.chunks().size(), 0) {
  const auto number = [&](const state::Block* block) {
    return block == nullptr ? kNone : static_cast<Index>(block - layout.blocks().data());
  };
  for (const auto b : layout.layers()) layers.push_back(static_cast<Index>(b));
  embedding_block = number(layout.embedding());
  head = number(description.head(layout));
  lowest = first_backward(layout);
  place(description.tied_head);
}

Index StepOrder::add(PassKind kind, Index block, Index slice) {
  passes_.push_back({.kind = kind,
                     .block = block,
                     .slice = slice,
                     .position = positions_++,
                     .on_host = device_ && traits(kind).of_rows});
  return static_cast<Index>(passes_.size() - 1);
}

void StepOrder::place(bool tied_head) {
  for (Index b = 0; b < layout_.blocks().size(); ++b) {
    const auto& block = layout_.blocks()[b];
    for (Index i = 0; i < block.chunks; ++i) {
      updates_[block.first_chunk + i] = positions_++;
      if (b == embedding_block) embedding.push_back(add(PassKind::embedding, b, i));
      if (b == head && !tied_head) head_loss.push_back(add(PassKind::head_loss, b, i));
    }
    if (!traits(block.role).is_table) forward.push_back(add(PassKind::forward, b));
  }
  last_update_ = updates_.back();
  const auto slices = head == kNone ? Index{0} : static_cast<Index>(layout_.blocks()[head].chunks);
  for (Index s = 0; tied_head && s < slices; ++s) head_loss.push_back(add(PassKind::head_loss, head, s));
  for (auto s = slices; s-- > 0;) head_gradient.push_back(add(PassKind::head_gradient, head, s));
  backward_start_ = positions_;
  backward.assign(layers.size(), kNone);
  for (auto i = layers.size(); i-- > lowest;) backward[i] = add(PassKind::backward, layers[i]);
  if (embedding_block != kNone && layout_.blocks()[embedding_block].trainable_chunks > 0) {
    embedding_backward = add(PassKind::embedding_backward, embedding_block);
  }
}

Index StepOrder::pass_of_gradient(Index chunk) const {
  const auto block = static_cast<Index>(layout_.chunks()[chunk].block);
  if (traits(layout_.blocks()[block].role).is_table) {
    const auto slice = chunk - layout_.blocks()[block].first_chunk;
    return head_gradient[head_gradient.size() - 1 - slice];
  }
  return backward[layer_of(chunk)];
}

std::size_t StepOrder::layer_of(Index chunk) const {
  const auto block = static_cast<Index>(layout_.chunks()[chunk].block);
  return static_cast<std::size_t>(std::ranges::lower_bound(layers, block) - layers.begin());
}

Index StepOrder::first_differentiated() const {
  return head != kNone ? head_gradient.front() : any_backward() ? backward.back() : kNone;
}

Index StepOrder::last_differentiated() const {
  if (embedding_backward != kNone) return embedding_backward;
  return any_backward() ? backward[lowest] : head != kNone ? head_gradient.back() : kNone;
}

std::uint32_t StepOrder::before_update(Index c, std::uint32_t ahead) const {
  return updates_[c > ahead ? c - ahead : 0];
}

std::uint32_t StepOrder::after_update(Index c) const {
  const auto n = updates_.size();
  const auto later = c + static_cast<std::size_t>(lookahead_.write);
  const auto at = later < n ? updates_[later] : last_update_ + static_cast<std::uint32_t>(later - (n - 1));
  const auto limit = comes_ahead(c) ? backward_start_ - 1 : positions_ - 1;
  return std::max(updates_[c], std::min(at, limit));
}

std::uint32_t StepOrder::before_pass(Index pass, std::uint32_t ahead) const {
  const auto at = position(pass);
  const auto begin = at > ahead ? at - ahead : 0;
  return std::min(at, std::max(begin, last_update_ + 1));
}

std::uint32_t StepOrder::after_forward(Index pass) const {
  return position(std::min(pass + lookahead_.backward, backward.back() - 1));
}

std::uint32_t StepOrder::after_read(Index pass) const {
  return std::max(position(pass), std::min(position(pass) + 1 + lookahead_.backward, backward_start_ - 1));
}

std::uint32_t StepOrder::after_gradient(Index pass) const {
  return std::min(position(pass) + lookahead_.grad_write, positions_ - 1);
}

std::uint32_t StepOrder::state_before_update(Index c) const {
  return comes_ahead(c) ? backward_start_ : before_update(c, lookahead_.state_read);
}

std::uint32_t StepOrder::device_before(Index pass) const {
  return position(pass - std::min(pass, lookahead_.device));
}

std::uint32_t StepOrder::device_after(Index pass) const {
  return position(std::min<Index>(pass + lookahead_.device, static_cast<Index>(passes_.size() - 1)));
}

std::uint32_t StepOrder::device_before_update(Index c) const {
  for (auto other = c - std::min(c, lookahead_.device); other < c; ++other) {
    if (is_trainable(other)) return updates_[other];
  }
  return updates_[c];
}

std::uint32_t StepOrder::device_after_update(Index c) const {
  const auto end = std::min<std::size_t>(std::size_t{c} + lookahead_.device + 1, updates_.size());
  for (auto other = static_cast<Index>(end); other-- > c + 1;) {
    if (is_trainable(other)) return updates_[other];
  }
  return updates_[c];
}

}  // namespace spillway::plan::step
