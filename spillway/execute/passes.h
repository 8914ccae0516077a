// The block passes of a step or of an evaluation, one after the other, as the caller computes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "spillway/execute/asked_pieces.h"
#include "spillway/execute/block_pass.h"
#include "spillway/execute/conversion.h"
#include "spillway/execute/executor.h"
#include "spillway/execute/gradients.h"
#include "spillway/execute/resources.h"
#include "spillway/execute/run_plan.h"
#include "spillway/execute/sparse_embedding.h"
#include "spillway/execute/step_digests.h"
#include "spillway/execute/weight_slots.h"

namespace spillway::execute {

class Passes {
 public:
  /// `rows` may be null: no embedding. `digests`, which may be null: of the weights. All references must outlive it.
  Passes(const RunPlan& plan, Resources& resources, SparseEmbedding* rows, Gradients& gradients, Executor& executor,
         const WeightSlots& slots, StepDigests* digests = nullptr);

  /// An instance of the schedule with passes begins.
  void begin(const Mode& mode);
  /// True if passes of it are left, as far as next() has told.
  [[nodiscard]] bool left() const noexcept { return left_; }
  /// Throws Error(bad_input) unless all of them have ended.
  void require_ended();

  /// Runs the passes of the embedding: row of token t to output[t]; null: to the input of the first layer. Throws
  /// Error(bad_input) without an embedding.
  void embedding_forward(std::byte* output);
  /// The next one, when its bytes are there; empty: there is none.
  [[nodiscard]] std::optional<BlockPass> next();
  /// Throws Error(bad_input) where none is open.
  void end();
  /// Conversion::convert_pieces() of the one that is open, when what it asks for is there; ask_pieces() begins to bring
  /// it (Executor::ask). Throw Error(bad_input) where none is open.
  void convert_pieces(std::size_t tensor, std::uint64_t first, std::uint64_t count);
  void ask_pieces(std::size_t tensor, std::uint64_t first, std::uint64_t count);
  [[nodiscard]] const AskedPieces& asked_pieces() const noexcept { return asked_pieces_; }
  [[nodiscard]] AskedPieces& asked_pieces() noexcept { return asked_pieces_; }
  /// The one that is open. Throws Error(bad_input), naming `call`, where it is not of that kind.
  [[nodiscard]] const plan::Pass& open(plan::PassKind kind, const char* call) const;

 private:
  [[nodiscard]] std::byte* at(plan::Index buffer) const { return arenas_.at(schedule_, buffer); }
  [[nodiscard]] std::byte* first_input() const;
  template <class Body>
  void each_asked(std::size_t tensor, std::uint64_t first, std::uint64_t count, const Body& body) const;
  /// Input of a pass. A device gathers it first where the embedding's rows came packed.
  [[nodiscard]] std::byte* input_of(const plan::Pass& pass) const;
  [[nodiscard]] BlockPass describe(const plan::Pass& pass) const;
  /// Lets the executor go on after a pass.
  void end(const plan::Pass& pass);

  const plan::Schedule& schedule_;
  const state::Layout& layout_;
  const Arenas arenas_;
  const sink::Arithmetic& arithmetic_;
  ThreadPool& thread_pool_;
  SparseEmbedding* const rows_;
  Gradients& gradients_;
  Executor& executor_;
  const WeightSlots& slots_;
  StepDigests* const digests_;
  const Conversion conversion_;
  AskedPieces asked_pieces_;
  const plan::Pass* open_ = nullptr;
  bool left_ = false;
  bool packed_ = false;  ///< the embedding's passes have packed rows
};

}  // namespace spillway::execute
