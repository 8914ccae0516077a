// Gradients of the slices of a head, which the embedding may share.
#include "spillway/execute/gradients.h"

namespace spillway::execute {

void Gradients::take_slice(const std::byte* values, std::uint64_t micro_batch) {
  const auto& block = layout_.blocks()[pass_->block];
  const auto chunk = block.first_chunk + pass_->slice;
  const auto& it = layout_.chunks()[chunk];
  const auto to = target(0, 0, it.used, type_);
  if (!take(to, seen_[0], values, micro_batch)) return;
  finish(to, summed() ? nullptr : values, tied() ? nullptr : squares_ + slots_.slice(chunk));
  add_digest(to, chunk, layout_.blocks()[pass_->block].name);
  if (tied()) end_tied(to, unrounded(to, summed() ? nullptr : values), it, pass_->slice);
}

bool Gradients::tied() const noexcept {
  return rows_ != nullptr && rows_->block() == pass_->block;
}

/// A tied table: the step's own rows wait for the embedding's part and are not rounded yet.
void Gradients::end_tied(const Target& to, const float* sums, const state::Chunk& it, std::size_t slice) {
  if (!listed_) list_others();
  keep_rows(to, sums, it);
  const auto& others = others_[slice];
  const auto chunk = static_cast<std::size_t>(&it - layout_.chunks().data());
  const auto* parts =
      apart() ? reinterpret_cast<device::Part*>(where_.workspace + where_.sizes.parts_at()) : parts_.data();
  run(device::Squares{.type = type_,
                      .values = to.grad,
                      .parts = parts + others.first,
                      .count = others.count,
                      .squares = squares_ + slots_.other_rows(chunk, others)});
}

void Gradients::keep_rows(const Target& to, const float* sums, const state::Chunk& it) {
  const auto kept = rows_->in_chunk(it);
  if (kept.rows.empty()) return;
  const auto columns = layout_.blocks()[pass_->block].columns;
  const auto* ids = rows_->rows().data();
  auto* out = rows_->sum_of(kept.first);
  if (apart()) {
    ids = reinterpret_cast<std::int64_t*>(where_.workspace + where_.sizes.rows_at());
    out = as_floats(where_.workspace + where_.sizes.gathered_at());
  }
  run(device::Gather{.type = sums == nullptr ? type_ : device::Element::fp32,
                     .values = sums == nullptr ? to.grad : reinterpret_cast<const std::byte*>(sums),
                     .rows = ids + kept.first,
                     .base = kept.base,
                     .count = kept.rows.size(),
                     .columns = columns,
                     .out = out});
  if (!apart()) return;
  where_.device.copy(where_.stream, device::Direction::from_device,
                     reinterpret_cast<std::byte*>(rows_->sum_of(kept.first)), reinterpret_cast<std::byte*>(out),
                     kept.rows.size() * columns * sizeof(float));
}

/// Once a step, when the first slice of a tied table ends.
void Gradients::list_others() {
  const auto& block = layout_.blocks()[pass_->block];
  parts_.clear();
  for (std::size_t slice = 0; slice < others_.size(); ++slice) {
    list_other_rows(*rows_, layout_.chunks()[block.first_chunk + slice], block.columns, others_[slice], parts_);
  }
  if (apart()) {
    send(where_.sizes.parts_at(), parts_.data(), parts_.size() * sizeof(device::Part));
    send(where_.sizes.rows_at(), rows_->rows().data(), rows_->rows().size_bytes());
  }
  listed_ = true;
}

void Gradients::send(Bytes to, const void* from, Bytes bytes) {
  where_.device.copy(where_.stream, device::Direction::to_device, where_.workspace + to,
                     static_cast<const std::byte*>(from), bytes);
}

}  // namespace spillway::execute
