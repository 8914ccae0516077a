#include "spillway/execute/gradients.h"

#include <algorithm>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::execute {
namespace {

static_assert(plan::kSquaresTile == device::kSquaresTile);

}  // namespace

Gradients::Gradients(const plan::Schedule& schedule, const state::Layout& layout, const plan::Description& description,
                     Arenas arenas, SparseEmbedding* rows, sink::GradientSink& sink, ThreadPool& thread_pool,
                     const sink::Arithmetic& where, StepDigests* digests)
    : schedule_(schedule),
      layout_(layout),
      description_(description),
      arenas_(arenas),
      rows_(rows),
      sink_(sink),
      thread_pool_(thread_pool),
      where_(where),
      digests_(digests),
      summed_(where.device.make_event()),
      sums_(where.device, where.stream),
      targets_(schedule, layout, description, arenas),
      reduced_(description, layout, sink, where),
      virtual_ranks_(description.virtual_ranks),
      slots_(layout, description.virtual_ranks > 1),
      host_squares_(where.sizes.squares),
      squares_(apart() ? reinterpret_cast<double*>(where.workspace) : host_squares_.data()),
      table_(layout, rows, description.weight_dtype, where_, slots_, squares_) {
  std::size_t tensors = 1;
  for (const auto& block : layout.blocks()) tensors = std::max(tensors, block.tensors);
  seen_.resize(tensors);
  squares_in_order_.reserve(slots_.count() + layout.chunks().size());
  if (!description.is_shared()) return;
  exchange_ = std::make_unique<GradientExchange>(
      GradientExchange::Parts{schedule, layout, description, arenas, rows, reduced_, sink, digests}, slots_,
      host_squares_);
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
  table_.begin();
  targets_.begin(summed());
}

void Gradients::open(const plan::Pass& pass) {
  pass_ = &pass;
  std::ranges::fill(seen_, Seen{});
  if (!traits(pass.kind).of_layer) return;
  sink_.open(layout_.blocks()[pass.block]);
  reduced_.open(layout_.blocks()[pass.block]);
}

void Gradients::wait() {
  where_.device.record(summed_, where_.stream);
  where_.device.synchronise(summed_);
}

bool Gradients::take(const GradientTarget& to, Seen& seen, const std::byte* values, std::uint64_t micro_batch) {
  if (summed()) sums_.add(to.place, seen.sums, to.given, values, micro_batch);
  return end_part(to, seen, micro_batch);
}

bool Gradients::end_part(const GradientTarget& to, Seen& seen, std::uint64_t micro_batch) {
  const bool last = micro_batch + 1 == end_;
  if (summed() && last) sums_.finish(to.place, seen.sums);
  seen.state = last ? 2 : 1;
  seen.next = micro_batch + 1;
  return last && exchange_ == nullptr;
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
  const auto to = targets_.find_target(*pass_, tensor);
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
  return sums_.lend_sum(targets_.find_target(*pass_, tensor).place, seen.sums, micro_batch);
}

void Gradients::end_sum(std::size_t tensor, std::uint64_t micro_batch) {
  auto& seen = seen_of(tensor);
  if (!seen.is_lent || seen.lent != micro_batch + 1) {
    throw Error(ErrorCode::bad_input, text("end_sum() of ", layout_.tensors()[tensor].spec.name, " for micro-batch ",
                                           micro_batch, ", whose sum was not lent"));
  }
  seen.is_lent = false;
  const auto to = targets_.find_target(*pass_, tensor);
  if (end_part(to, seen, micro_batch)) finish_tensor(tensor, to, nullptr);
}

void Gradients::take_sparse(const std::byte* values) {
  if (exchange_) {
    auto* const parts = reinterpret_cast<float*>(arenas_.at(schedule_, schedule_.shared(plan::Operand::sent_rows)));
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
      const auto to = targets_.find_target(*pass_, number);
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
      reduced_.close(number, seen.state != 0, squares, to.grad + targets_.auxiliary_of(number));
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
