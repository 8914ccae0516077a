// What projectors miss, as the running estimates in the records that go with S (subspace/bias.h): work of the device
// that passes compute on, in the order of its stream. The host reads all records at once, with the norm of the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spillway/device/device.h"
#include "spillway/sink/arithmetic.h"
#include "spillway/state/layout.h"
#include "spillway/subspace/subspaces.h"

namespace spillway::subspace {

class Estimates {
 public:
  /// References must outlive it.
  Estimates(const state::Layout& layout, Subspaces& subspaces, const sink::Arithmetic& where);

  /// A training step begins: no record is written.
  void begin();
  /// A backward pass of the block begins.
  void open(const state::Block& block);
  /// G z of a micro-batch, [rows], fp32, where passes compute; it stays until the stream has come to it.
  void take(std::size_t tensor, std::span<const float> seen);
  /// The step's S is complete; `squares` are its tiles' sums, where passes compute. Writes its record to `out` there.
  void close(std::size_t tensor, std::span<const double> squares, std::byte* out);
  /// Gives the copy of all records to the host to the stream; tell() after the stream has come to it.
  void fetch();
  void tell();

 private:
  /// Where a matrix's sums and its record lie.
  struct Place {
    std::uint64_t seen = 0, square = 0, record = 0;  ///< numbers of elements from the start of each
    bool taken = false, closed = false;
  };
  [[nodiscard]] bool apart() const noexcept { return where_.workspace != nullptr; }

  const state::Layout& layout_;
  Subspaces& subspaces_;
  const sink::Arithmetic where_;
  std::vector<Place> places_;  ///< by tensor
  std::vector<float> host_seen_;
  std::vector<double> host_squares_;
  std::vector<double> records_;  ///< here
  float* const seen_;
  double *const squares_, *const made_;
};

}  // namespace spillway::subspace
