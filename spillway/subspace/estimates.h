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
  /// `shared`: other processes close matrices, too, and tell() is of all whose pass was opened. References must outlive
  /// it.
  Estimates(const state::Layout& layout, Subspaces& subspaces, const sink::Arithmetic& where, bool shared = false);

  /// A training step begins: no record is written.
  void begin();
  /// A backward pass of the block begins.
  void open(const state::Block& block);
  /// The step's S is complete; `squares` are its tiles' sums, `seen` is G z, fp32, which is overwritten, or empty, all
  /// where passes compute. Writes its record to `out` there.
  void close(std::size_t tensor, std::span<const double> squares, std::span<float> seen, std::byte* out);
  /// The record of Subspaces takes the place of what close() has written.
  void replace(std::size_t tensor);
  /// Gives the copy of all records to the host to the stream; tell() after the stream has come to it.
  void fetch();
  /// By matrix, one after the other; those that were not closed are zeros.
  [[nodiscard]] std::span<double> records() noexcept { return records_; }
  void tell();

 private:
  /// Where a matrix's sums and its record lie.
  struct Place {
    std::uint64_t square = 0, record = 0;  ///< numbers of elements from the start of each
    bool told = false;                     ///< tell() is to take it
  };
  [[nodiscard]] bool apart() const noexcept { return where_.workspace != nullptr; }

  const state::Layout& layout_;
  Subspaces& subspaces_;
  const sink::Arithmetic where_;
  const bool shared_;
  std::vector<Place> places_;  ///< by tensor
  std::vector<double> host_squares_;
  std::vector<double> records_;  ///< here
  double *const squares_, *const made_;
};

}  // namespace spillway::subspace
