#include "spillway/execute/tied_table.h"

namespace spillway::execute {

static_assert(sizeof(device::Part) == 16, "plan::DeviceWorkspace counts on it");

TiedTable::TiedTable(const state::Layout& layout, SparseEmbedding* rows, state::ComputeType type,
                     const sink::Arithmetic& where, SquareSlots& slots, double* squares)
    : layout_(layout),
      rows_(rows),
      type_(type),
      where_(where),
      slots_(slots),
      squares_(squares),
      others_(rows != nullptr && rows->dense() ? layout.blocks()[rows->block()].chunks : 0) {
  if (!others_.empty()) parts_.reserve(where.sizes.parts);
}

void TiedTable::end_slice(std::size_t slice, const std::byte* gradient, const float* sums) {
  if (!listed_) list_others();
  const auto chunk = layout_.blocks()[rows_->block()].first_chunk + slice;
  keep_rows(layout_.chunks()[chunk], gradient, sums);
  const auto& others = others_[slice];
  const auto* parts =
      is_apart() ? reinterpret_cast<device::Part*>(where_.workspace + where_.sizes.parts_at()) : parts_.data();
  where_.device.run(where_.stream, device::Squares{.type = type_,
                                                   .values = gradient,
                                                   .parts = parts + others.first,
                                                   .count = others.count,
                                                   .squares = squares_ + slots_.other_rows(chunk, others)});
}

void TiedTable::keep_rows(const state::Chunk& chunk, const std::byte* gradient, const float* sums) {
  const auto kept = rows_->in_chunk(chunk);
  if (kept.rows.empty()) return;
  const auto columns = layout_.blocks()[rows_->block()].columns;
  const auto* ids = rows_->rows().data();
  auto* out = rows_->sum_of(kept.first);
  if (is_apart()) {
    ids = reinterpret_cast<std::int64_t*>(where_.workspace + where_.sizes.rows_at());
    out = reinterpret_cast<float*>(where_.workspace + where_.sizes.gathered_at());
  }
  where_.device.run(where_.stream,
                    device::Gather{.type = sums == nullptr ? type_ : device::Element::fp32,
                                   .values = sums == nullptr ? gradient : reinterpret_cast<const std::byte*>(sums),
                                   .rows = ids + kept.first,
                                   .base = kept.base,
                                   .count = kept.rows.size(),
                                   .columns = columns,
                                   .out = out});
  if (!is_apart()) return;
  where_.device.copy(where_.stream, device::Direction::from_device,
                     reinterpret_cast<std::byte*>(rows_->sum_of(kept.first)), reinterpret_cast<std::byte*>(out),
                     kept.rows.size() * columns * sizeof(float));
}

/// Once a step, when its first slice ends.
void TiedTable::list_others() {
  const auto& block = layout_.blocks()[rows_->block()];
  parts_.clear();
  for (std::size_t slice = 0; slice < others_.size(); ++slice) {
    list_other_rows(*rows_, layout_.chunks()[block.first_chunk + slice], block.columns, others_[slice], parts_);
  }
  if (is_apart()) {
    send(where_.sizes.parts_at(), parts_.data(), parts_.size() * sizeof(device::Part));
    send(where_.sizes.rows_at(), rows_->rows().data(), rows_->rows().size_bytes());
  }
  listed_ = true;
}

void TiedTable::send(Bytes to, const void* from, Bytes bytes) {
  where_.device.copy(where_.stream, device::Direction::to_device, where_.workspace + to,
                     static_cast<const std::byte*>(from), bytes);
}

}  // namespace spillway::execute
