#include "spillway/execute/names.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {
namespace {

/// The first and the last tensor of a chunk that has such a span.
template <class Counts>
std::string of_spans(const state::Layout& layout, std::size_t chunk, const Counts& counts) {
  std::string begin, end;
  for (const auto& span : layout.spans(chunk)) {
    if (!counts(span)) continue;
    end = layout.tensors()[span.tensor].spec.name;
    if (begin.empty()) begin = end;
  }
  return begin == end ? begin : text(begin, " to ", end);
}

}  // namespace

ObjectNames::ObjectNames(const plan::Description& description, const state::Layout& layout)
    : description_(description), layout_(layout) {
  for (plan::Index c = 0; c < layout.chunks().size(); ++c) {
    if (plan::has_dense_grad(description, layout, c)) chunks_.push_back(c);
  }
}

std::string ObjectNames::describe(journal::ObjectKind kind, std::uint32_t object) const {
  if (kind == journal::ObjectKind::snapshot) {
    return text(tensors(object, 0, layout_.chunks()[object].values()), " (chunk ", object, ")");
  }
  if (object >= chunks_.size()) return text("the embedding's rows, part ", object - chunks_.size());
  return text(tensors(chunks_[object], 0, layout_.chunks()[chunks_[object]].used), " (chunk ", chunks_[object], ")");
}

std::string ObjectNames::describe(journal::ObjectKind kind, std::uint32_t object, std::uint32_t part, Bytes first,
                                  Bytes bytes) const {
  if (kind == journal::ObjectKind::snapshot) {
    return text(fields(object, part, first, first + bytes), " (chunk ", object, ")");
  }
  if (object >= chunks_.size()) return text("gradient of ", describe(kind, object));
  const auto chunk = chunks_[object];
  const auto element = state::field_bytes(rule_of(description_.rule(), layout_.chunks()[chunk]).type).grad;
  return text("gradient of ", tensors(chunk, first / element, ceil_div(first + bytes, element)), " (chunk ", chunk,
              ")");
}

std::string ObjectNames::fields(std::size_t chunk, std::uint32_t part, Bytes first, Bytes last) const {
  const auto& it = layout_.chunks()[chunk];
  std::string out;
  for (const auto& array :
       part == journal::kWeightPart ? weight_arrays(description_.rule(), it) : state_arrays(description_.rule(), it)) {
    const auto begin = std::max(first, array.first), end = std::min(last, array.first + array.bytes);
    if (begin >= end) continue;
    const auto entry = (begin - array.first) / array.item, beyond = ceil_div(end - array.first, array.item);
    const auto unquantised = [&](const state::Span& span) {
      return span.is_unquantised() && span.unquantised < beyond && span.unquantised + span.elements > entry;
    };
    out += text(out.empty() ? "" : ", ", array.name, " of ",
                array.covers == 0 ? of_spans(layout_, chunk, unquantised)
                                  : tensors(chunk, entry * array.covers, beyond * array.covers));
  }
  return out.empty() ? text("padding of ", layout_.blocks()[it.block].name) : out;
}

std::string ObjectNames::tensors(std::size_t chunk, std::uint64_t first, std::uint64_t last) const {
  auto out = of_spans(layout_, chunk, [&](const state::Span& span) {
    return span.chunk_first < last && span.chunk_first + span.elements > first;
  });
  return out.empty() ? text("padding of ", layout_.blocks()[layout_.chunks()[chunk].block].name) : out;
}

}  // namespace spillway::execute
