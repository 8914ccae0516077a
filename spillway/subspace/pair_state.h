// The pair of projectors of one matrix, from step to step: the pair that passes use, the one that is refitted beside
// them, and the records of both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spillway/optim/lsp.h"
#include "spillway/subspace/refit.h"

namespace spillway::subspace {

struct PairState {
  static constexpr std::size_t kNoRoom = ~std::size_t{0};

  std::uint64_t number = 0;  ///< among the matrices that are trained in subspaces, in the order of the tensors
  bool published = false;
  Projectors projectors, next;
  optim::RefitRecord kept, record;  ///< of the steps applied; with this step's
  optim::RefitRecord before;        ///< of the steps applied but the last
  optim::RefitRecord told;          ///< on its way between processes
  bool due = false;                 ///< the newest training step is to refit it
  bool taken = false;               ///< a gradient of the step was given whole
  bool looked = false;              ///< the record has what is missed of the step's gradient
  bool samples = true;              ///< this step's S counts for the estimate
  bool refitted = false;            ///< in the newest training step
  bool first = false;               ///< what it refitted is `projectors`, else `next`
  bool applied = false;             ///< that step
  std::size_t room = kNoRoom;       ///< with the gradient that it is to be refitted from
  std::uint64_t drawn = 0;          ///< fits before the newest, which may end behind its step
  std::uint64_t version = 1;

  /// A training step begins.
  void begin() noexcept;
  /// Its backward pass begins: what the step before has refitted is there.
  void open();
  /// The step refits the pair of the next step. Moments begin with that pair where `anew`, and with the second pair of
  /// all, and go on otherwise. `updates`: before this step.
  void begin_later(bool anew, std::int64_t updates);
  /// The step has ended: applied, or skipped, and then what it refitted is forgotten.
  void end(bool was_applied);

  /// True if a gradient that was left waits to be refitted from.
  [[nodiscard]] bool is_left() const noexcept { return room != kNoRoom && !first; }
  /// The estimate of what is missed after the steps applied.
  [[nodiscard]] double error() const;

  /// The record and the new pair, to be sent as they are here, or received.
  [[nodiscard]] std::vector<std::span<std::byte>> list_exchanged(bool sends);
  /// They have come.
  void receive();
};

}  // namespace spillway::subspace
