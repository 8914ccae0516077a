#include "spillway/state/layout.h"

#include <algorithm>
#include <iterator>
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

optim::Reduced checked_reduction(const TensorSpec& spec, BlockRole role) {
  if (spec.training != Training::reduced) return {};
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::bad_input,
                text("tensor ", spec.name, " cannot learn in a ", spec.reduction->word, ": ", why));
  };
  if (traits(role).is_table || spec.shape.size() != 2) refuse("only matrices inside layers can");
  const bool fits = spec.form == Form::as_run || spec.form == Form::bf16_master;
  if (!fits) refuse(text("it is kept in ", spec.form == Form::fp32 ? "fp32" : word_of(spec.form)));
  const optim::Reduced out{static_cast<std::uint64_t>(spec.shape[0]), static_cast<std::uint64_t>(spec.shape[1]),
                           spec.rank, spec.nonzeros, spec.reduction};
  if (const auto why = out.by->refusal(out); !why.empty()) refuse(why);
  return out;
}

void check_form(const TensorSpec& spec, BlockRole role, ComputeType type) {
  const bool is_bf16 = traits(type).rounds && !traits(type).scales_loss;
  if (spec.form == Form::bf16_master && !(is_bf16 && spec.training == Training::reduced)) {
    throw Error(ErrorCode::bad_input, text("tensor ", spec.name, " cannot have a master in bf16: only a matrix that ",
                                           "is trained in a ", spec.reduction->word, " of a run in bf16 can"));
  }
  if (!is_packed(spec.form) || (!traits(role).is_table && !is_trainable(spec.training))) return;
  throw Error(ErrorCode::bad_input, text("tensor ", spec.name, " cannot be kept as ", word_of(spec.form),
                                         ": only what is frozen inside layers can"));
}

/// Values that a tensor begins at a multiple of.
std::uint64_t alignment_of(const TensorSpec& spec, ComputeType type, std::uint64_t alignment) {
  const auto apart = spec.apart ? granule_values(spec.form, type) : 1;
  return std::lcm(std::lcm(alignment, packing_of(spec.form, type).values), apart);
}

/// Places where objects of a tensor begin, or what comes behind it does.
std::uint64_t bounds_of_objects(const TensorSpec& spec) {
  return spec.apart ? spec.pieces + 1 : 0;
}

void check_pieces(const Tensor& tensor, ComputeType type) {
  const auto& spec = tensor.spec;
  if (spec.pieces == 0 && !spec.apart) return;
  const auto unit = spec.apart ? alignment_of(spec, type, 1) : kernels::kPackedBlock;
  const auto is_share = [](double share) { return share > 0 && share <= 1; };
  if (!is_share(spec.asked) || !std::ranges::all_of(spec.asked_by_piece, is_share)) {
    throw Error(ErrorCode::bad_input, text("tensor ", spec.name, " is asked for by a share that is not in (0, 1]"));
  }
  if (!spec.asked_by_piece.empty() && (!spec.apart || spec.asked_by_piece.size() != spec.pieces)) {
    throw Error(ErrorCode::bad_input, text("tensor ", spec.name, " has ", spec.asked_by_piece.size(),
                                           " shares for its ", spec.pieces, " pieces that are apart"));
  }
  const auto whole = spec.pieces > 0 && tensor.elements % spec.pieces == 0 && tensor.piece() % unit == 0;
  const auto plain = spec.form == Form::as_run && spec.training != Training::reduced;
  if ((is_packed(spec.form) || plain) && whole) return;
  throw Error(ErrorCode::bad_input, text("tensor ", spec.name, " cannot be ", spec.apart ? "placed" : "converted",
                                         " in ", spec.pieces, " pieces: it has to be packed or of the run's type",
                                         ", and each piece a multiple of ", unit, " values"));
}

bool is_plain_apart(const TensorSpec& spec) noexcept {
  return spec.apart && !is_packed(spec.form);
}

/// The number (Chunk::index) of a value of a tensor.
std::uint64_t number_of(const Layout& layout, std::size_t tensor, std::uint64_t value) {
  for (const auto& chunk : layout.chunks()) {
    for (const auto& it : layout.spans(chunk.id)) {
      if (it.tensor != tensor || value < it.tensor_first || value >= it.tensor_first + it.elements) continue;
      return chunk.index + it.chunk_first + (value - it.tensor_first);
    }
  }
  return 0;
}

}  // namespace

std::vector<std::int64_t> Tensor::gradient_shape() const {
  const auto rank = static_cast<std::int64_t>(reduced.rank);
  return rank > 0 ? std::vector{rank, rank} : spec.shape;
}

const Block* Layout::embedding() const noexcept {
  const auto at = std::ranges::find_if(blocks_, [](const Block& it) { return traits(it.role).is_gathered; });
  return at == blocks_.end() ? nullptr : &*at;
}

Layout::Layout(const std::vector<BlockSpec>& blocks, std::uint64_t chunk_elements, std::uint64_t alignment,
               ComputeType type, optim::Scope scope, std::size_t shards)
    : chunk_elements_(round_up(std::max<std::uint64_t>(chunk_elements, 1), kChunkGranule)),
      alignment_(alignment),
      type_(type),
      scope_(scope),
      shard_elements_(std::max<std::size_t>(shards, 1)) {
  std::set<std::string> names;
  for (const auto& spec : blocks) {
    if (spec.tensors.empty()) throw Error(ErrorCode::bad_input, text("block ", spec.name, " has no tensors"));
    for (const auto& tensor : spec.tensors) {
      if (tensor.name.empty()) throw Error(ErrorCode::bad_input, text("block ", spec.name, " has a nameless tensor"));
      if (!names.insert(tensor.name).second) {
        throw Error(ErrorCode::bad_input, text("tensor ", tensor.name, " is listed twice"));
      }
    }
    traits(spec.role).is_table ? add_table(spec) : add_layer(spec);
  }
}

Block& Layout::add_block(const BlockSpec& spec) {
  objects_.clear();
  blocks_.push_back({.name = spec.name,
                     .role = spec.role,
                     .first_tensor = tensors_.size(),
                     .tensors = spec.tensors.size(),
                     .first_chunk = chunks_.size()});
  for (const auto& tensor : spec.tensors) {
    tensors_.push_back({.spec = tensor, .block = blocks_.size() - 1, .elements = checked_elements(tensor)});
    tensors_.back().spec.form = form_in(tensor.form, type_);
    check_form(tensors_.back().spec, spec.role, type_);
    check_pieces(tensors_.back(), type_);
    tensors_.back().reduced = checked_reduction(tensors_.back().spec, spec.role);
    if (scope_ == optim::Scope::matrix && tensors_.back().reduced.any()) {
      throw Error(ErrorCode::bad_input,
                  text("tensor ", tensor.name, " cannot learn in a ", tensors_.back().reduced.by->word,
                       ": its optimizer updates whole matrices"));
    }
    if (tensors_.back().reduced.any()) reduction_ = tensors_.back().reduced.by;
    tensors_.back().whole = is_whole(tensors_.back().spec, spec.role);
    parameters_ += tensors_.back().elements;
    if (is_trainable(tensor.training)) trainable_parameters_ += tensors_.back().elements;
  }
  return blocks_.back();
}

bool Layout::is_whole(const TensorSpec& spec, BlockRole role) const {
  return scope_ == optim::Scope::matrix && !traits(role).is_table && spec.shape.size() == 2 &&
         spec.form == Form::as_run && spec.training == Training::full && !spec.table;
}

void Layout::add_chunk(std::uint64_t first, std::uint64_t used, Training training, Form form, bool whole) {
  auto& block = blocks_.back();
  Chunk chunk{.id = chunks_.size(),
              .block = blocks_.size() - 1,
              .first = first,
              .elements = round_up(used, kChunkGranule),
              .used = used,
              .training = training,
              .form = form,
              .packing = packing_of(form, type_),
              .whole = whole,
              .index = first,
              .object = static_cast<std::size_t>(std::ranges::upper_bound(objects_, first) - objects_.begin())};
  if (training == Training::full) chunk.gradient_elements = chunk.values();
  const auto& packing = chunk.packing;
  std::vector<Span> spans;
  for (std::size_t i = block.first_tensor; i < block.first_tensor + block.tensors; ++i) {
    const auto& tensor = tensors_[i];
    if (tensor.spec.training != training || tensor.spec.form != form || tensor.whole != whole) continue;
    const auto begin = std::max(tensor.first, first);
    const auto end = std::min(tensor.first + packing.elements_of(tensor.elements), first + used);
    if (begin >= end) continue;
    const auto before = packing.values_in(begin - tensor.first);
    const auto values = std::min(packing.values_in(end - begin), tensor.elements - before);
    spans.push_back({i, before, packing.values_in(begin - first), values});
    if (tensor.spec.apart) chunk.asked = tensor.spec.share_of(before / tensor.piece());
    if (whole) {
      chunk.rows = static_cast<std::uint64_t>(tensor.spec.shape[0]);
      chunk.columns = static_cast<std::uint64_t>(tensor.spec.shape[1]);
    }
    if (training == Training::reduced) {
      chunk.reduced = tensor.reduced;
      chunk.gradient_elements = round_up(tensor.gradient_elements(), kChunkGranule);
    }
    if (tensor.gradient_elements() >= kUnquantisedBelow) continue;
    spans.back().unquantised = chunk.unquantised;
    chunk.unquantised +=
        round_up(training == Training::reduced ? tensor.gradient_elements() : values, kUnquantisedGranule);
  }
  largest_chunk_ = std::max(largest_chunk_, chunk.elements);
  block.chunks += 1;
  block.packed = block.packed || is_packed(form);
  block.elements += chunk.elements;
  if (is_trainable(training)) {
    block.trainable_chunks += 1;
    block.trainable_elements += chunk.elements;
  }
  chunks_.push_back(chunk);
  spans_.push_back(std::move(spans));
}

void Layout::add_layer(const BlockSpec& spec) {
  layers_.push_back(blocks_.size());
  add_block(spec);
  std::uint64_t begin = 0;
  for (const auto training : kTrainings) {
    if (training != Training::reduced) {
      for (const auto form : kForms) begin = add_range(begin, training, form);
    }
    begin = add_matrices(begin, training);
  }
  blocks_.back().pass_chunks = blocks_.back().chunks;
  if (std::ranges::none_of(spec.tensors, is_plain_apart)) return;
  // Random numbers of an update are those of a layout without pieces.
  auto plain = spec;
  for (auto& tensor : plain.tensors) {
    if (is_plain_apart(tensor)) tensor = {.name = tensor.name, .shape = tensor.shape, .training = tensor.training};
  }
  const Layout whole({plain}, chunk_elements_, alignment_, type_, scope_, shards());
  const auto& block = blocks_.back();
  for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
    if (spans_[c].empty()) continue;
    const auto& first = spans_[c].front();
    chunks_[c].index = number_of(whole, first.tensor - block.first_tensor, first.tensor_first) - first.chunk_first;
  }
}

/// The last block's tensors that learn so, from element `begin` on, cut into chunks; returns where the next may begin.
std::uint64_t Layout::add_range(std::uint64_t begin, Training training, Form form) {
  const auto& block = blocks_.back();
  const auto packing = packing_of(form, type_);
  std::uint64_t values = 0;
  for (auto i = block.first_tensor; i < block.first_tensor + block.tensors; ++i) {
    auto& tensor = tensors_[i];
    if (tensor.spec.training != training || tensor.spec.form != form || tensor.whole) continue;
    const auto alignment = alignment_of(tensor.spec, type_, alignment_);
    values = round_up(values, alignment);
    tensor.first = begin + packing.elements_of(values);
    values = round_up(values + tensor.elements, alignment);
    add_objects(tensor, packing);
  }
  if (values == 0) return begin;
  const auto total = round_up(packing.elements_of(values), kChunkGranule);
  const auto granule = packing.granule(kChunkGranule), granules = ceil_div(total, granule);
  for (std::size_t shard = 0; shard < shards(); ++shard) {
    const auto first = granules * shard / shards() * granule, end = granules * (shard + 1) / shards() * granule;
    if (first < end) add_run(begin, first, std::min(end, total), training, form, shard);
  }
  return begin + total;
}

/// The pieces of a tensor that are objects, and what comes behind it.
void Layout::add_objects(const Tensor& tensor, const Packing& packing) {
  for (std::uint64_t i = 0; i < bounds_of_objects(tensor.spec); ++i) {
    objects_.push_back(tensor.first + packing.elements_of(i * tensor.piece()));
  }
  const auto [again, end] = std::ranges::unique(objects_);  // of two tensors side by side
  objects_.erase(again, end);
}

/// Elements [first, end) of what begins at `begin`, cut where objects begin, and into chunks of equal size.
void Layout::add_run(std::uint64_t begin, std::uint64_t first, std::uint64_t end, Training training, Form form,
                     std::size_t shard) {
  const auto packing = packing_of(form, type_);
  const auto granule = packing.granule(kChunkGranule), most = std::max(granule, round_down(chunk_elements_, granule));
  std::vector<std::uint64_t> cuts{begin + first};
  std::copy(std::ranges::upper_bound(objects_, begin + first), std::ranges::lower_bound(objects_, begin + end),
            std::back_inserter(cuts));
  cuts.push_back(begin + end);
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    const auto length = cuts[i] - cuts[i - 1], size = round_up(ceil_div(length, ceil_div(length, most)), granule);
    for (auto at = cuts[i - 1]; at < cuts[i]; at += size) {
      add_chunk(at, std::min(size, cuts[i] - at), training, form);
      chunks_.back().index = begin + packing.values_in(at - begin);
      assign(shard);
    }
  }
}

/// The last chunk, to a shard.
void Layout::assign(std::size_t shard) {
  chunks_.back().shard = shard;
  shard_elements_[shard] += chunks_.back().elements;
}

std::size_t Layout::smallest_shard() const {
  return static_cast<std::size_t>(std::ranges::min_element(shard_elements_) - shard_elements_.begin());
}

/// The last block's tensors that learn so and are chunks of their own.
std::uint64_t Layout::add_matrices(std::uint64_t begin, Training training) {
  const auto first = blocks_.back().first_tensor, last = first + blocks_.back().tensors;
  const auto alone = [&](std::size_t i) {
    return tensors_[i].spec.training == training && (tensors_[i].whole || tensors_[i].reduced.any());
  };
  for (auto i = first; i < last; ++i) {
    if (!alone(i)) continue;
    tensors_[i].first = begin;
    begin = round_up(begin + tensors_[i].elements, kChunkGranule);
  }
  for (auto i = first; i < last; ++i) {
    if (!alone(i)) continue;
    add_chunk(tensors_[i].first, tensors_[i].elements, training, tensors_[i].spec.form, tensors_[i].whole);
    assign(smallest_shard());
  }
  return begin;
}

void Layout::add_table(const BlockSpec& spec) {
  if (spec.tensors.size() != 1 || spec.tensors.front().shape.size() != 2) {
    throw Error(ErrorCode::bad_input, text("block ", spec.name, " must hold exactly one tensor of two dimensions"));
  }
  auto& block = add_block(spec);
  if (tensors_.back().spec.form != Form::as_run) {
    throw Error(ErrorCode::bad_input, text("tensor ", spec.tensors.front().name,
                                           " is a table, which cannot be kept in fp32 where the rest is not"));
  }
  const auto& shape = spec.tensors.front().shape;
  block.pass_chunks = 1;
  block.rows = static_cast<std::uint64_t>(shape[0]);
  block.columns = static_cast<std::uint64_t>(shape[1]);
  // Slices of equal height, so that the last is not a splinter.
  const auto most = std::max<std::uint64_t>(1, chunk_elements_ / block.columns);
  const auto whole = alignment_ > kTensorAlignment ? alignment_ / std::gcd(alignment_, block.columns) : 1;
  const auto slices = ceil_div(ceil_div(block.rows, shards()), most);  // of a shard
  block.slice_rows = round_up(ceil_div(block.rows, slices * shards()), whole);
  for (std::uint64_t row = 0; row < block.rows; row += block.slice_rows) {
    add_chunk(row * block.columns, std::min(block.slice_rows, block.rows - row) * block.columns,
              spec.tensors.front().training);
    assign(static_cast<std::size_t>(row / block.slice_rows / slices));
  }
}

}  // namespace spillway::state
