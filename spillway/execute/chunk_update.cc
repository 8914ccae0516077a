#include "spillway/execute/chunk_update.h"

#include <new>

#include "spillway/execute/reductions.h"

namespace spillway::execute {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

kernels::UpdateStep element_step(const state::UpdateRule& rule, const optim::Step& step) noexcept {
  return optim::kernel_step(rule.optimizer->of(false), optim::group_step(*rule.optimizer, step, false));
}

void ChunkUpdate::Free::operator()(std::byte* memory) const noexcept {
  ::operator delete(memory, kAlignment);
}

ChunkUpdate::ChunkUpdate(const state::Layout& layout, const state::UpdateRule& rule)
    : layout_(layout), rule_(rule), reduced_(make_reduced_update(layout, rule)) {
  const auto bytes = state::update_workspace(rule, layout);
  if (bytes > 0) workspace_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
}

void ChunkUpdate::prepare(std::size_t chunk, const state::GroupPointers& groups) {
  const auto& it = layout_.chunks()[chunk];
  if (it.reduced.any()) reduced_->prepare(it, groups);
}

std::size_t ChunkUpdate::parts(std::size_t chunk) const noexcept {
  const auto& it = layout_.chunks()[chunk];
  if (it.whole) return rule_.optimizer->matrix->parts;
  return it.reduced.any() ? reduced_->parts() : 1;
}

std::size_t ChunkUpdate::tiles(std::size_t chunk, std::size_t part) const noexcept {
  const auto& it = layout_.chunks()[chunk];
  if (it.whole) return rule_.optimizer->matrix->tiles(it.rows, it.columns, part);
  if (it.reduced.any()) return reduced_->tiles(it, part);
  return ceil_div(it.used, kUpdateTile);
}

void ChunkUpdate::run(std::size_t chunk, const state::GroupPointers& groups, const optim::Step& step, std::size_t part,
                      std::size_t tile) {
  const auto& it = layout_.chunks()[chunk];
  if (it.whole) {
    auto matrix = state::matrix_of(rule_, it, groups);
    matrix.decays = layout_.tensors()[layout_.spans(chunk).front().tensor].spec.decay;
    matrix.workspace = workspace_.get();
    return rule_.optimizer->matrix->run(matrix, step, part, tile);
  }
  const auto own = element_step(rule_, step);
  if (it.reduced.any()) return reduced_->run(it, groups, own, part, tile);
  const auto begin = tile * kUpdateTile, end = std::min(begin + kUpdateTile, it.used);
  update_spans(layout_, rule_, chunk, groups, own, begin, end, [](const auto& located, const auto& its_step) {
    kernels::update(located.form, located.span, its_step);
  });
}

void ChunkUpdate::finish(std::size_t chunk, const state::GroupPointers& groups) {
  const auto& it = layout_.chunks()[chunk];
  if (it.reduced.any()) reduced_->finish(it, groups);
}

}  // namespace spillway::execute
