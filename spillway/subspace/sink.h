// The gradient sink of subspaces: gradients through the projectors of their matrices, on a machine.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "spillway/device/device.h"
#include "spillway/sink/gradient_sink.h"
#include "spillway/subspace/compress.h"
#include "spillway/subspace/estimates.h"
#include "spillway/subspace/subspaces.h"

namespace spillway::subspace {

class Sink : public sink::GradientSink {
 public:
  /// References must outlive it.
  Sink(const plan::Description& description, const state::Layout& layout)
      : description_(description), layout_(layout), subspaces_(description, layout) {}

  void use(const sink::Arithmetic& where, const device::ParallelFor& parallel_for) override;
  [[nodiscard]] std::unique_ptr<sink::DeviceUpdate> make_device_update(const state::UpdateRule& rule,
                                                                       float* delta) const override;

  void restore(std::size_t tensor, const std::byte* fields) override { subspaces_.restore(tensor, fields); }
  void begin(std::int64_t updates, double scale, std::uint64_t first_rank) override;
  void end(bool applied) override { subspaces_.end(applied); }

  void open(const state::Block& block) override { estimates_->open(block); }
  [[nodiscard]] bool wants_whole(std::size_t tensor, std::uint64_t micro_batch) const override {
    return subspaces_.refits_in_pass(tensor) && micro_batch < first_rank_;
  }
  void take_whole(std::size_t tensor, std::span<const float> gradient) override;
  void compress(std::size_t tensor, unsigned side, const std::byte* in, std::size_t in_stride, std::size_t tokens,
                std::byte* out) override;
  void signs(std::size_t tensor, std::span<float> out) const override { subspaces_.signs(tensor, out); }
  [[nodiscard]] bool ready(std::size_t tensor) const override { return subspaces_.has_projectors(tensor); }
  void close(std::size_t tensor, std::span<const double> squares, std::span<float> seen, std::byte* out) override;
  void fetch() override { estimates_->fetch(); }
  [[nodiscard]] std::span<double> records() override { return estimates_->records(); }
  void tell() override { estimates_->tell(); }

  [[nodiscard]] bool refits(std::size_t tensor) const override { return subspaces_.refitted(tensor); }
  void begin_refit(std::size_t tensor) override { subspaces_.begin_refit(tensor); }
  [[nodiscard]] std::size_t refit_tiles(std::size_t tensor, unsigned part) const override;
  void refit(unsigned part, std::size_t tile) override { subspaces_.refit(part, tile); }
  void end_refit(std::size_t tensor, std::byte* fields) override { subspaces_.end_refit(tensor, fields); }

  [[nodiscard]] bool due(std::size_t tensor) const override { return subspaces_.due(tensor); }
  [[nodiscard]] std::vector<std::span<std::byte>> exchanged(std::size_t tensor, bool sends) override {
    return subspaces_.exchanged(tensor, sends);
  }
  void received(std::size_t tensor, std::byte* fields) override;

  [[nodiscard]] double error(std::size_t tensor) const override { return subspaces_.error(tensor); }
  [[nodiscard]] std::uint64_t refit_count(std::size_t tensor) const override { return subspaces_.refits(tensor); }

 private:
  const plan::Description& description_;
  const state::Layout& layout_;
  Subspaces subspaces_;
  std::uint64_t first_rank_ = ~std::uint64_t{0};  ///< micro-batches of the first virtual rank
  device::ParallelFor parallel_for_;
  std::unique_ptr<device::Device> host_;  ///< of several processes whose passes compute on a device; else null
  std::optional<Estimates> estimates_;    ///< from use() on, as is
  std::optional<Compress> compress_;
};

}  // namespace spillway::subspace
