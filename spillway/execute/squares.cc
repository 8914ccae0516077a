#include "spillway/execute/squares.h"

#include <algorithm>

#include "spillway/execute/sparse_embedding.h"

namespace spillway::execute {

void list_other_rows(const SparseEmbedding& rows, const state::Chunk& chunk, std::uint64_t columns, OtherRows& out,
                     std::vector<device::Part>& parts) {
  const auto kept = rows.in_chunk(chunk);
  out.first = parts.size();
  out.runs.clear();
  std::uint64_t at = 0;
  const auto add_up_to = [&](std::uint64_t to) {
    const auto before = parts.size();
    for (auto first = at * columns; first < to * columns; first += device::kSquaresTile) {
      parts.push_back({first, std::min(device::kSquaresTile, to * columns - first)});
    }
    if (parts.size() > before) out.runs.push_back(static_cast<std::uint32_t>(parts.size() - before));
  };
  for (const auto id : kept.rows) {
    const auto row = static_cast<std::uint64_t>(id - kept.base);
    add_up_to(row);
    at = row + 1;
  }
  add_up_to(chunk.used / columns);
  out.count = parts.size() - out.first;
}

SquareSlots::SquareSlots(const state::Layout& layout, bool by_chunk) {
  const auto add = [&](std::uint64_t elements) {
    slots_.push_back({.first = end_, .count = device::square_tiles(elements)});
    end_ += slots_.back().count;
  };
  std::vector<std::vector<Piece>> found(layout.tensors().size());
  for (const auto& chunk : layout.chunks()) {
    for (const auto& span : layout.spans(chunk.id)) {
      const auto& tensor = layout.tensors()[span.tensor];
      auto& pieces = found[span.tensor];
      const bool whole = !by_chunk || tensor.reduced.any();
      if (pieces.empty()) {
        pieces.push_back({chunk.id, 0, whole ? tensor.gradient_elements() : span.elements});
      } else if (!whole) {
        pieces.push_back({chunk.id, span.tensor_first, span.elements});
      }
    }
  }
  first_piece_.push_back(0);
  for (const auto& pieces : found) {
    for (const auto& piece : pieces) {
      pieces_.push_back(piece);
      add(piece.elements);
    }
    first_piece_.push_back(pieces_.size());
  }
  slots_.resize(pieces_.size() + layout.chunks().size());
  for (const auto& block : layout.blocks()) {
    if (!traits(block.role).is_table) continue;
    for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
      auto& slots = slots_[pieces_.size() + c];
      slots = {.first = end_, .count = device::square_tiles(layout.chunks()[c].used)};
      end_ += slots.count;
    }
  }
}

void SquareSlots::begin() {
  for (auto& slots : slots_) {
    slots.written = false;
    slots.others = nullptr;
  }
}

std::size_t SquareSlots::write(std::size_t number) noexcept {
  slots_[number].written = true;
  return slots_[number].first;
}

std::size_t SquareSlots::slice(std::size_t chunk) noexcept {
  return write(pieces_.size() + chunk);
}

std::size_t SquareSlots::other_rows(std::size_t chunk, const OtherRows& others) noexcept {
  auto& slots = slots_[pieces_.size() + chunk];
  slots.written = true;
  slots.others = &others;
  return end_ + others.first;
}

double SquareSlots::sum(const Slots& slots, std::span<const double> squares) const {
  double out = 0;
  if (slots.others == nullptr) {
    for (std::size_t i = 0; i < slots.count; ++i) out += squares[slots.first + i];
    return out;
  }
  auto at = end_ + slots.others->first;
  for (const auto parts : slots.others->runs) {
    double run = 0;
    for (std::uint32_t i = 0; i < parts; ++i) run += squares[at++];
    out += run;
  }
  return out;
}

void SquareSlots::append_sums(std::span<const double> squares, std::vector<double>& out) const {
  for (const auto& slots : slots_) out.push_back(slots.written ? sum(slots, squares) : 0);
}

}  // namespace spillway::execute
