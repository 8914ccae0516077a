#include "spillway/execute/names.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {
namespace {

/// An array of a part, and the elements of it that are meant.
struct Stretch {
  const char* name = "";
  std::uint64_t first = 0, last = 0;
};

std::vector<Stretch> stretches(state::ComputeType type, std::uint64_t elements, std::uint32_t part, Bytes first,
                               Bytes last) {
  struct Array {
    const char* name;
    Bytes element;
  };
  std::vector<Array> arrays;
  const bool bf16 = type == state::ComputeType::bf16;
  if (part == kWeightPart) {
    arrays = {{"weight", Bytes{bf16 ? 2U : 4U}}};
  } else {
    if (bf16) arrays.push_back({"residual", 2});
    arrays.push_back({"exp_avg", 4});
    arrays.push_back({"exp_avg_sq", 4});
  }
  std::vector<Stretch> out;
  Bytes at = 0;
  for (const auto& array : arrays) {
    const auto begin = std::max(first, at), end = std::min(last, at + elements * array.element);
    if (begin < end) out.push_back({array.name, (begin - at) / array.element, ceil_div(end - at, array.element)});
    at += elements * array.element;
  }
  return out;
}

}  // namespace

ObjectNames::ObjectNames(const plan::Description& description, const state::Layout& layout)
    : description_(description), layout_(layout) {
  for (plan::Index c = 0; c < layout.chunks().size(); ++c) {
    if (plan::has_dense_grad(description, layout, c)) chunks_.push_back(c);
  }
}

std::string ObjectNames::of(storage::ObjectKind kind, std::uint32_t object) const {
  if (kind == storage::ObjectKind::image) {
    return text(tensors(object, 0, layout_.chunks()[object].used), " (chunk ", object, ")");
  }
  if (object >= chunks_.size()) return text("the embedding's rows, part ", object - chunks_.size());
  return text(tensors(chunks_[object], 0, layout_.chunks()[chunks_[object]].used), " (chunk ", chunks_[object], ")");
}

std::string ObjectNames::of(storage::ObjectKind kind, std::uint32_t object, std::uint32_t part, Bytes first,
                            Bytes bytes) const {
  if (kind == storage::ObjectKind::image) {
    return text(fields(object, part, first, first + bytes), " (chunk ", object, ")");
  }
  if (object >= chunks_.size()) return text("gradient of ", of(kind, object));
  const auto chunk = chunks_[object];
  const auto element = state::field_bytes(description_.type).grad;
  return text("gradient of ", tensors(chunk, first / element, ceil_div(first + bytes, element)), " (chunk ", chunk,
              ")");
}

std::string ObjectNames::fields(std::size_t chunk, std::uint32_t part, Bytes first, Bytes last) const {
  std::string out;
  for (const auto& it : stretches(description_.type, layout_.chunks()[chunk].elements, part, first, last)) {
    out += text(out.empty() ? "" : ", ", it.name, " of ", tensors(chunk, it.first, it.last));
  }
  return out;
}

std::string ObjectNames::tensors(std::size_t chunk, std::uint64_t first, std::uint64_t last) const {
  std::string begin, end;
  for (const auto& span : layout_.spans(chunk)) {
    if (span.chunk_first >= last || span.chunk_first + span.elements <= first) continue;
    end = layout_.tensors()[span.tensor].spec.name;
    if (begin.empty()) begin = end;
  }
  if (begin.empty()) return text("padding of ", layout_.blocks()[layout_.chunks()[chunk].block].name);
  return begin == end ? begin : text(begin, " to ", end);
}

}  // namespace spillway::execute
