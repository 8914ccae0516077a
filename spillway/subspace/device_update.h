// The update of a matrix that is trained in a subspace, as work of the device that its weight, state and gradient are
// on: the bits of SubspaceUpdate.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "spillway/device/device.h"
#include "spillway/kernels/update.h"
#include "spillway/sink/gradient_sink.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"
#include "spillway/subspace/subspaces.h"

namespace spillway::subspace {

/// The host gives work to the stream, knowing from Subspaces whether the pair is another after the update; only where
/// moments are carried over does it wait for them, for that is its own work.
class DeviceSubspaceUpdate : public sink::DeviceUpdate {
 public:
  /// `delta`: on the device, fp32, for the largest S that is updated there, and behind it room for the change as sent.
  /// Of a rule that plan::no_device_update() has nothing against, with weights of bf16. References must outlive it.
  DeviceSubspaceUpdate(const state::Layout& layout, const state::UpdateRule& rule, const Subspaces& subspaces,
                       float* delta)
      : layout_(layout), rule_(rule), subspaces_(subspaces), delta_(delta) {}

  void run(device::Device& device, device::Stream stream, const state::Chunk& chunk, const state::GroupPointers& groups,
           const kernels::UpdateStep& step) override;
  void apply(device::Device& device, device::Stream stream, const state::Chunk& chunk,
             const state::GroupPointers& groups, const kernels::UpdateStep& step) override;

 private:
  /// A chunk where it lies on a device, and the stream of its update.
  struct There {
    device::Device& device;
    device::Stream stream = 0;
    const state::Chunk& chunk;
    const state::GroupPointers& groups;
    std::byte* ours = nullptr;         ///< the pair of the state
    const std::byte* given = nullptr;  ///< of the gradient
  };
  void change(const There& it, const kernels::UpdateStep& step, const optim::RefitRecord& record);
  enum class Way { round, widen };
  void convert(const There& it, const std::byte* from, std::byte* to, Way way) const;
  void expand(const There& it, const kernels::UpdateStep& step, const float* delta) const;
  void adopt(const There& it, const optim::RefitRecord& before, const optim::RefitRecord& after);
  [[nodiscard]] state::Located moments_of(const There& it) const;
  void begin(const There& it) const;
  void carry(const There& it);
  void wait(const There& it);

  const state::Layout& layout_;
  const state::UpdateRule rule_;
  const Subspaces& subspaces_;
  float* const delta_;
  std::optional<device::Event> arrived_;   ///< when moments are first carried
  std::vector<std::byte> before_, after_;  ///< pairs, while they are; grow to their size and stay
  std::vector<std::byte> codes_;           ///< a moment as it is kept
  std::vector<float> values_, scales_;     ///< of a moment
};

}  // namespace spillway::subspace
