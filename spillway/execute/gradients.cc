#include "spillway/execute/gradients.h"

#include <algorithm>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::execute {
namespace {

static_assert(plan::kSquaresTile == device::kSquaresTile);
static_assert(sizeof(device::Part) == 16, "plan::DeviceWorkspace counts on it");

float* as_fp32(std::byte* at) {
  return reinterpret_cast<float*>(at);
}

}  // namespace

Gradients::Gradients(const plan::Schedule& schedule, const state::Layout& layout, const plan::Description& description,
                     Arenas arenas, SparseEmbedding* rows, sink::GradientSink& sink, ThreadPool& thread_pool,
                     const sink::Arithmetic& where, StepDigests* digests)
    : schedule_(schedule),
      layout_(layout),
      description_(description),
      type_(description.weight_dtype),
      given_(description.computes()),
      arenas_(arenas),
      rows_(rows),
      sink_(sink),
      thread_pool_(thread_pool),
      where_(where),
      digests_(digests),
      summed_(where.device.make_event()),
      sums_(where.device, where.stream),
      reduced_(description, layout, sink, where),
      virtual_ranks_(description.virtual_ranks),
      planned_sums_(description.gradient_sums()),
      slots_(layout, description.virtual_ranks > 1),
      host_squares_(where.sizes.squares),
      squares_(apart() ? reinterpret_cast<double*>(where.workspace) : host_squares_.data()),
      others_(rows != nullptr && rows->dense() ? layout.blocks()[rows->block()].chunks : 0) {
  place_tensors(description.rule());
  std::size_t tensors = 1;
  for (const auto& block : layout.blocks()) tensors = std::max(tensors, block.tensors);
  seen_.resize(tensors);
  if (!others_.empty()) parts_.reserve(where.sizes.parts);
  squares_in_order_.reserve(slots_.count() + layout.chunks().size());
  if (!description.is_shared()) return;
  exchange_ = std::make_unique<GradientExchange>(
      GradientExchange::Parts{schedule, layout, description, arenas, rows, reduced_, sink, digests}, slots_,
      host_squares_);
}

void Gradients::place_tensors(const state::UpdateRule& rule) {
  places_.resize(layout_.tensors().size());
  for (const auto& block : layout_.blocks()) {
    Place at;
    for (auto c = block.first_chunk; c < block.first_chunk + block.trainable_chunks; ++c) {
      const auto& chunk = layout_.chunks()[c];
      at.auxiliary = at.grad + gradient_value_bytes(rule, chunk);
      for (const auto& span : layout_.spans(c)) {
        if (span.tensor_first > 0) continue;
        const auto inner = span.chunk_first;  // of what is reduced 0
        const auto bytes = state::field_bytes(rule_of(rule, chunk).type).grad;
        places_[span.tensor] = {at.grad + inner * bytes, at.sum + inner, at.auxiliary};
      }
      at.grad += grad_bytes(rule, chunk);
      at.sum += chunk.gradient_elements;
    }
  }
}

void Gradients::begin(std::uint64_t micro_batches) {
  micro_batches_ = micro_batches;
  const plan::VirtualRanks ranks(virtual_ranks_, std::max<std::uint64_t>(1, micro_batches));
  const auto own = ranks.restrict_to(description_.world.rank, description_.world.size);
  end_ = ranks.position_of(own.end());
  sums_.begin(own);
  reduced_.begin(own);
  if (exchange_) exchange_->begin(ranks);
  slots_.begin();
  sparse_ = exchange_ != nullptr;
  sparse_norm_ = 0;
  listed_ = false;
}

void Gradients::open(const plan::Pass& pass) {
  pass_ = &pass;
  std::ranges::fill(seen_, Seen{});
  if (!traits(pass.kind).of_layer) return;
  sink_.open(layout_.blocks()[pass.block]);
  reduced_.open(layout_.blocks()[pass.block]);
}

Gradients::Target Gradients::target(Bytes at, std::uint64_t sum_at, std::uint64_t elements,
                                    state::ComputeType type) const {
  // Chunks stored in fp32 are computed in fp32 in any case.
  Target out{.type = type, .given = traits(type).rounds ? given_ : type, .elements = elements};
  out.grad = arenas_.at(schedule_.buffers[(*pass_)[plan::Operand::gradient]]) + at;
  const bool in_place = !traits(type).rounds && !exchange_;
  out.place = {.lowest = in_place ? as_fp32(out.grad) : nullptr, .elements = elements};
  if ((*pass_)[plan::Operand::gradient_sums] == plan::kNone || !summed()) return out;
  const auto& buffer = schedule_.buffers[(*pass_)[plan::Operand::gradient_sums]];
  auto* const sums = as_fp32(arenas_.at(buffer)) + sum_at;
  out.place.stride = buffer.bytes / sizeof(float) / planned_sums_;
  out.place.others = traits(type_).rounds || exchange_ ? sums + out.place.stride : sums;
  if (!in_place) out.sum = out.place.lowest = sums;
  return out;
}

Gradients::Target Gradients::target_of(std::size_t tensor) const {
  const auto& it = layout_.tensors()[tensor];
  const auto type = type_of(it.spec.form, type_);
  return target(places_[tensor].grad, places_[tensor].sum, it.gradient_elements(), type);
}

void Gradients::wait() {
  where_.device.record(summed_, where_.stream);
  where_.device.synchronise(summed_);
}

bool Gradients::take(const Target& to, Seen& seen, const std::byte* values, std::uint64_t micro_batch) {
  if (summed()) sums_.add(to.place, seen.sums, to.given, values, micro_batch);
  return end_part(to, seen, micro_batch);
}

bool Gradients::end_part(const Target& to, Seen& seen, std::uint64_t micro_batch) {
  const bool last = micro_batch + 1 == end_;
  if (summed() && last) sums_.finish(to.place, seen.sums);
  seen.state = last ? 2 : 1;
  seen.next = micro_batch + 1;
  return last;
}

void Gradients::finish_tensor(std::size_t tensor, const Target& to, const std::byte* values) {
  if (exchange_) return;  // whoever has the chunks does it
  const auto pieces = slots_.pieces(tensor);
  const auto in = state::field_bytes(to.given).grad, out = state::field_bytes(to.type).grad;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    auto part = to;
    part.grad += pieces[i].first * out;
    if (part.sum != nullptr) part.sum += pieces[i].first;
    part.elements = pieces[i].elements;
    finish(part, values == nullptr ? nullptr : values + pieces[i].first * in, squares_ + slots_.piece(tensor, i));
    add_digest(part, pieces[i].chunk, layout_.tensors()[tensor].spec.name);
  }
}

void Gradients::add_digest(const Target& to, std::size_t chunk, const std::string& tensor) {
  if (digests_ == nullptr) return;
  const std::span<const std::byte> values(to.grad, to.elements * state::field_bytes(to.type).grad);
  digests_->add_gradient(tensor, chunk, values, schedule_.buffers[(*pass_)[plan::Operand::gradient]].on_device());
}

void Gradients::finish(const Target& to, const std::byte* values, double* squares) {
  const auto* sums = unrounded(to, values);
  run(device::Round{.type = to.type,
                    .sums = sums,
                    .values = values != nullptr ? values : to.grad,
                    .out = to.grad,
                    .n = to.elements,
                    .squares = squares});
}

const float* Gradients::unrounded(const Target& to, const std::byte* values) {
  if (values != nullptr) return to.given == to.type ? nullptr : reinterpret_cast<const float*>(values);
  return traits(to.type).rounds ? to.sum : nullptr;
}

Gradients::Seen& Gradients::seen_of(std::size_t tensor) {
  const auto& it = layout_.tensors().at(tensor);
  if (pass_ == nullptr || !traits(pass_->kind).of_layer || it.block != pass_->block) {
    throw Error(ErrorCode::internal, text("a gradient of ", it.spec.name, " outside its block's backward pass"));
  }
  if (!has_gradient(it.spec.training)) {
    throw Error(ErrorCode::bad_input, text("a gradient of ", it.spec.name, ", which is frozen"));
  }
  return seen_[tensor - layout_.blocks()[it.block].first_tensor];
}

void Gradients::require_later(std::size_t tensor, std::uint64_t micro_batch, std::uint64_t least) const {
  if (micro_batch >= least) return;
  throw Error(ErrorCode::bad_input,
              text("a second gradient of ", layout_.tensors()[tensor].spec.name, " for micro-batch ", micro_batch));
}

void Gradients::take(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch) {
  auto& seen = seen_of(tensor);
  require_later(tensor, micro_batch, seen.lent);
  const auto to = target_of(tensor);
  const bool last = take(to, seen, values, micro_batch);
  if (last) finish_tensor(tensor, to, summed() ? nullptr : values);
}

SumLoan Gradients::lend_sum(std::size_t tensor, std::uint64_t micro_batch) {
  auto& seen = seen_of(tensor);
  require_later(tensor, micro_batch, std::max(seen.next, seen.lent));
  const auto& it = layout_.tensors()[tensor];
  if (!can_lend_sums() || it.reduced.any()) {
    throw Error(ErrorCode::bad_input, text("the sum of ", it.spec.name, " in a step of ", micro_batches_,
                                           " micro-batches and ", virtual_ranks_, " virtual ranks",
                                           it.reduced.any() ? ": the gradient is reduced" : "", "; call gradient()"));
  }
  seen.lent = micro_batch + 1;
  seen.is_lent = true;
  return sums_.lend_sum(target_of(tensor).place, seen.sums, micro_batch);
}

void Gradients::end_sum(std::size_t tensor, std::uint64_t micro_batch) {
  auto& seen = seen_of(tensor);
  if (!seen.is_lent || seen.lent != micro_batch + 1) {
    throw Error(ErrorCode::bad_input, text("end_sum() of ", layout_.tensors()[tensor].spec.name, " for micro-batch ",
                                           micro_batch, ", whose sum was not lent"));
  }
  seen.is_lent = false;
  const auto to = target_of(tensor);
  if (end_part(to, seen, micro_batch)) finish_tensor(tensor, to, nullptr);
}

void Gradients::take_slice(const std::byte* values, std::uint64_t micro_batch) {
  const auto& block = layout_.blocks()[pass_->block];
  const auto chunk = block.first_chunk + pass_->slice;
  const auto& it = layout_.chunks()[chunk];
  const auto to = target(0, 0, it.used, type_);
  if (!take(to, seen_[0], values, micro_batch) || exchange_) return;
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
    out = as_fp32(where_.workspace + where_.sizes.gathered_at());
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

void Gradients::take_sparse(const std::byte* values) {
  if (exchange_) {
    auto* const parts = as_fp32(arenas_.at(schedule_, schedule_.shared(plan::Operand::sent_rows)));
    return rows_->sum_parts(values, parts, thread_pool_);
  }
  sparse_norm_ = rows_->round(values, thread_pool_).sum;
  sparse_ = true;
  if (digests_ == nullptr || !digests_->wanted()) return;
  const auto& table = layout_.blocks()[rows_->block()];
  digests_->add_gradient(text("rows of ", table.name), table.first_chunk, rows_->rounded(), false);
}

void Gradients::close() {
  const bool of_layer = pass_ != nullptr && traits(pass_->kind).of_layer;
  if (of_layer) {
    const auto& block = layout_.blocks()[pass_->block];
    for (std::size_t i = 0; i < block.tensors; ++i) {
      const auto number = block.first_tensor + i;
      if (!has_gradient(layout_.tensors()[number].spec.training)) continue;
      const auto to = target_of(number);
      auto& seen = seen_[i];
      if (seen.is_lent) {
        throw Error(ErrorCode::bad_input,
                    text("the sum of ", layout_.tensors()[number].spec.name, " was lent, and end_sum() is missing"));
      }
      const bool reduced = layout_.tensors()[number].reduced.any();
      if (reduced) reduced_.finish(number);
      if (exchange_) {
        if (seen.state != 2) sums_.finish(to.place, seen.sums);
        continue;
      }
      if (seen.state == 1) {
        sums_.finish(to.place, seen.sums);
        finish_tensor(number, to, nullptr);
      }
      if (seen.state == 0) {
        where_.device.fill(where_.stream, to.grad, 0, to.elements * state::field_bytes(to.type).grad);
      }
      if (!reduced) continue;
      const std::span squares(squares_ + slots_.tensor(number), device::square_tiles(to.elements));
      const auto behind = places_[number].auxiliary - places_[number].grad;
      reduced_.close(number, seen.state != 0, squares, to.grad + behind);
    }
  }
  const bool wanted = !exchange_ || sums_.any();
  if (wanted && pass_ != nullptr && !of_layer && seen_[0].state != 2) {
    throw Error(ErrorCode::internal, text("head slice ", pass_->slice, " ended without its gradient"));
  }
  pass_ = nullptr;
}

const std::vector<double>& Gradients::squares() {
  if (apart() && !exchange_) {  // else they were taken here
    where_.device.copy(where_.stream, device::Direction::from_device,
                       reinterpret_cast<std::byte*>(host_squares_.data()), reinterpret_cast<const std::byte*>(squares_),
                       host_squares_.size() * sizeof(double));
  }
  sink_.fetch();
  wait();
  if (!exchange_) sink_.tell();  // else when those of all processes are there
  auto& out = squares_in_order_;
  out.clear();
  slots_.append_sums(host_squares_, out);
  if (rows_ == nullptr || !sparse_ || schedule_.shared(plan::Operand::rows) == plan::kNone) return out;
  if (virtual_ranks_ == 1) {
    out.push_back(sparse_norm_);
    return out;
  }
  const auto& table = layout_.blocks()[rows_->block()];
  for (auto c = table.first_chunk; c < table.first_chunk + table.chunks; ++c) {
    const auto& slice = layout_.chunks()[c];
    out.push_back(description_.has(layout_, slice) ? rows_->norm_of(slice) : 0);
  }
  return out;
}

kernels::Norm Gradients::total() {
  kernels::Norm out;
  for (const auto part : squares()) out.sum += part;
  return out;
}

}  // namespace spillway::execute
