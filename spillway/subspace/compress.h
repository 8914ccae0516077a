// Subspaces as work of the device that passes compute on: the factors of a gradient through the projectors of their
// matrix, and what the host is to know of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spillway/device/device.h"
#include "spillway/sink/arithmetic.h"
#include "spillway/state/layout.h"
#include "spillway/subspace/subspaces.h"

namespace spillway::subspace {

/// A device with memory of its own has a copy of every projector, made anew where it has changed: 4 r (m + n) bytes of
/// a matrix, which is next to nothing for the link. Published ones take some 12 r (m + n) + 8 d.
class Compress {
 public:
  /// `type`: of what passes compute in. The workspace of `where` has room for the copies. References must
  /// outlive it.
  Compress(const state::Layout& layout, state::ComputeType type, const Subspaces& subspaces,
           const sink::Arithmetic& where);

  /// kernels::compress() by side 0 (P) or 1 (Q) of a tensor's pair, in the order of the stream: in [tokens][rows of the
  /// side, or more], out [columns][tokens], both where passes compute.
  void run(std::size_t tensor, unsigned side, const std::byte* in, std::size_t in_stride, std::size_t tokens,
           std::byte* out);

  /// Copies such values to the host, to `to`, in the order of the stream; on the host at once.
  void fetch(std::span<const float> values, std::span<float> to);
  /// Values that a pass has left where it computes, for the host, which waits for the stream. Good until the next
  /// call.
  [[nodiscard]] std::span<const float> here(std::span<const float> values);

 private:
  struct Copy {
    std::uint64_t at = 0;                                    ///< floats from the start of the copies
    std::uint64_t version = 0;                               ///< Subspaces::version() of what lies there
    std::array<std::vector<std::uint32_t>, 2> numbers = {};  ///< Projector::by_column of each side, on its way
  };
  [[nodiscard]] kernels::Projector projector(std::size_t tensor, unsigned side);
  void send(const void* from, std::byte* to, Bytes bytes);

  const state::ComputeType type_;
  const Subspaces& subspaces_;
  const sink::Arithmetic where_;
  std::vector<Copy> copies_;  ///< by tensor
  const device::Event arrived_;
  std::vector<float> fetched_;
};

}  // namespace spillway::subspace
