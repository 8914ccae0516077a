#include "spillway/subspace/sink.h"

#include "spillway/subspace/device_update.h"

namespace spillway::subspace {

void Sink::use(const sink::Arithmetic& where, const device::ParallelFor& parallel_for) {
  parallel_for_ = parallel_for;
  const bool shared = description_.is_shared();
  if (shared && where.workspace != nullptr) host_ = device::make_cpu();  // whoever has a chunk closes it there
  const auto closes = host_ ? sink::Arithmetic{*host_, host_->adopt_stream(nullptr), nullptr, where.sizes} : where;
  estimates_.emplace(layout_, subspaces_, closes, shared);
  compress_.emplace(layout_, description_.computes(), subspaces_, where);
  for (auto& room : subspaces_.rooms()) where.device.register_host(std::as_writable_bytes(std::span(room)));
}

std::unique_ptr<sink::DeviceUpdate> Sink::make_device_update(const state::UpdateRule& rule, float* delta) const {
  return std::make_unique<DeviceSubspaceUpdate>(layout_, rule, subspaces_, delta);
}

void Sink::begin(std::int64_t updates, double scale, std::uint64_t first_rank) {
  first_rank_ = first_rank;
  subspaces_.begin(updates, scale);
  estimates_->begin();
}

void Sink::take_whole(std::size_t tensor, std::span<const float> gradient) {
  subspaces_.check(tensor, gradient.size());
  if (subspaces_.looks(tensor) && !subspaces_.look(tensor, compress_->here(gradient))) return;
  if (const auto room = subspaces_.leave(tensor); !room.empty()) return compress_->fetch(gradient, room);
  subspaces_.refit(tensor, compress_->here(gradient), parallel_for_);
}

void Sink::compress(std::size_t tensor, unsigned side, const std::byte* in, std::size_t in_stride, std::size_t tokens,
                    std::byte* out) {
  compress_->run(tensor, side, in, in_stride, tokens, out);
}

void Sink::close(std::size_t tensor, std::span<const double> squares, std::span<float> seen, std::byte* out) {
  estimates_->close(tensor, squares, seen, out);
}

void Sink::received(std::size_t tensor, std::byte* fields) {
  subspaces_.received(tensor);
  if (fields == nullptr || !subspaces_.has_news(tensor)) return;
  subspaces_.put(tensor, fields);
  estimates_->replace(tensor);
}

std::size_t Sink::refit_tiles(std::size_t tensor, unsigned part) const {
  return subspaces_.refit_tiles(tensor, part);
}

}  // namespace spillway::subspace
