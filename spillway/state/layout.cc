#include "spillway/state/layout.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "spillway/base/error.h"

namespace spillway::state {
namespace {

std::uint64_t checked_elements(const TensorSpec& spec) {
  std::uint64_t elements = 1;
  for (const auto size : spec.shape) {
    if (size <= 0) {
      throw Error(ErrorCode::bad_input, text("tensor ", spec.name, " has a dimension of ", size, "; all must be > 0"));
    }
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements) || elements > (1ULL << 60)) {
      throw Error(ErrorCode::bad_input, text("tensor ", spec.name, " has more elements than a file can hold"));
    }
  }
  return elements;
}

}  // namespace

Layout::Layout(const std::vector<BlockSpec>& blocks, std::uint64_t chunk_elements, std::uint64_t alignment)
    : chunk_elements_(round_up(std::max<std::uint64_t>(chunk_elements, 1), kChunkGranule)), alignment_(alignment) {
  std::set<std::string> names;
  for (const auto& spec : blocks) {
    if (spec.tensors.empty()) throw Error(ErrorCode::bad_input, text("block ", spec.name, " has no tensors"));
    for (const auto& tensor : spec.tensors) {
      if (tensor.name.empty()) throw Error(ErrorCode::bad_input, text("block ", spec.name, " has a nameless tensor"));
      if (!names.insert(tensor.name).second) {
        throw Error(ErrorCode::bad_input, text("tensor ", tensor.name, " is listed twice"));
      }
    }
    if (spec.role == BlockRole::layer) {
      add_layer(spec);
    } else {
      add_table(spec);
    }
  }
}

void Layout::add_tensors(const BlockSpec& spec, std::uint64_t alignment) {
  Block block{.name = spec.name,
              .role = spec.role,
              .first_tensor = tensors_.size(),
              .tensors = spec.tensors.size(),
              .first_chunk = chunks_.size()};
  std::uint64_t at = 0;
  for (const auto& tensor : spec.tensors) {
    const auto elements = checked_elements(tensor);
    tensors_.push_back({tensor, blocks_.size(), at, elements});
    at = round_up(at + elements, alignment);
    parameters_ += elements;
  }
  block.elements = at;
  blocks_.push_back(std::move(block));
}

void Layout::add_chunk(std::uint64_t first, std::uint64_t used) {
  auto& block = blocks_.back();
  Chunk chunk{chunks_.size(), blocks_.size() - 1, first, round_up(used, kChunkGranule), used};
  std::vector<Span> spans;
  for (std::size_t i = block.first_tensor; i < block.first_tensor + block.tensors; ++i) {
    const auto& tensor = tensors_[i];
    const auto begin = std::max(tensor.first, first);
    const auto end = std::min(tensor.first + tensor.elements, first + used);
    if (begin >= end) continue;
    spans.push_back({i, begin - tensor.first, begin - first, end - begin});
    if (tensor.elements >= kSmallTensor) continue;
    spans.back().small = chunk.small;
    chunk.small += round_up(end - begin, kSmallGranule);
  }
  largest_chunk_ = std::max(largest_chunk_, chunk.elements);
  block.chunks += 1;
  chunks_.push_back(chunk);
  spans_.push_back(std::move(spans));
}

void Layout::add_layer(const BlockSpec& spec) {
  add_tensors(spec, alignment_);
  const auto total = round_up(blocks_.back().elements, kChunkGranule);
  const auto size = round_up(ceil_div(total, ceil_div(total, chunk_elements_)), kChunkGranule);
  for (std::uint64_t first = 0; first < total; first += size) add_chunk(first, std::min(size, total - first));
  blocks_.back().elements = total;
}

void Layout::add_table(const BlockSpec& spec) {
  if (spec.tensors.size() != 1 || spec.tensors.front().shape.size() != 2) {
    throw Error(ErrorCode::bad_input, text("block ", spec.name, " must hold exactly one tensor of two dimensions"));
  }
  add_tensors(spec, 1);
  const auto& shape = spec.tensors.front().shape;
  const auto rows = static_cast<std::uint64_t>(shape[0]);
  const auto columns = static_cast<std::uint64_t>(shape[1]);
  // Slices of equal height, so that the last is not a splinter.
  const auto most = std::max<std::uint64_t>(1, chunk_elements_ / columns);
  const auto whole = alignment_ > kTensorAlignment ? alignment_ / std::gcd(alignment_, columns) : 1;
  const auto slice_rows = round_up(ceil_div(rows, ceil_div(rows, most)), whole);
  for (std::uint64_t row = 0; row < rows; row += slice_rows) {
    add_chunk(row * columns, std::min(slice_rows, rows - row) * columns);
  }
  auto& block = blocks_.back();
  block.rows = rows;
  block.columns = columns;
  block.slice_rows = slice_rows;
  block.elements = 0;
  for (std::size_t i = 0; i < block.chunks; ++i) block.elements += chunks_[block.first_chunk + i].elements;
}

}  // namespace spillway::state
