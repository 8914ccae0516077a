// The engine for C++. It keeps the training state of one run on drives, in host memory and on a GPU, and moves it by a
// planned schedule while the caller computes. Most programs need this header alone.
//
// A step is a loop over block passes; the caller computes, the engine has the bytes ready:
//
//   spillway::Engine engine(description, settings);   // plans; throws when it does not fit; allocates nothing
//   engine.start();
//   engine.load_weights("checkpoint", {});             // or store_tensor()
//   engine.begin_step({.counts = {tokens}});
//   while (auto pass = engine.next_pass()) {           // forward blocks, then backward
//     ...                                              // pass->weights, pass->input, ...; gradient() in backward
//     engine.end_pass();
//   }
//   auto result = engine.end_step({.learning_rate = 1e-3});
//
// In a step of more micro-batches than virtual ranks a product may add to the sum of a gradient instead:
//
//   auto [sum, first] = engine.lend_sum(t, m);         // fp32; sum = y' x where `first`, else sum += y' x
//   engine.end_sum(t, m);
//
// A matrix whose TensorSpec says that it is reduced (optim/reduction.h) has a gradient S [rank, rank]: for each
// micro-batch in its backward pass, with the layer's input x [tokens, columns] and output gradient y [tokens, rows],
//
//   if (engine.wants_whole_gradient(t, m)) engine.whole_gradient(t, y' x); // in fp32
//   engine.compress(t, 0, y, ...); engine.compress(t, 1, x, ...);          // y P and x Q
//   engine.gradient(t, (y P)' (x Q), m);                                   // of the compute type
//   engine.sample(t, y' (x z), m);                                         // z from signs(); for refits()
//
// A tensor whose TensorSpec says that it is frozen has a weight alone: no gradient is to be given for it, no moments
// and no master are kept, and no step writes it. Layers below the lowest one that is trainable have no backward pass,
// and without a trainable embedding there is no embedding_backward pass.
//
// An engine has three faces: EngineStep runs steps, EngineStore brings state in and out and makes it durable,
// EngineTelemetry tells what was planned and what is happening. What only tests need is in engine_testing.h.
//
// One thread drives an engine. Every call may throw spillway::Error; after an error from a lane only close() helps. A
// child process that is forked has nothing of the engine, no memory and no locks: every call there throws
// Error(unsupported).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/execute/block_pass.h"
#include "spillway/execute/device_options.h"
#include "spillway/execute/loss_scaler.h"
#include "spillway/execute/node_options.h"
#include "spillway/execute/recovery.h"
#include "spillway/execute/redeal.h"
#include "spillway/execute/silence.h"
#include "spillway/execute/step_digests.h"
#include "spillway/execute/step_values.h"
#include "spillway/execute/sum_loan.h"
#include "spillway/execute/telemetry.h"
#include "spillway/execute/verification.h"
#include "spillway/execute/volume_options.h"
#include "spillway/journal/recovery.h"
#include "spillway/kernels/gradient.h"
#include "spillway/network/port.h"
#include "spillway/plan/description.h"
#include "spillway/plan/fits.h"
#include "spillway/plan/planner.h"
#include "spillway/plan/settings.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"
#include "spillway/sys/fork.h"

namespace spillway {

using execute::BlockPass;
using execute::Damage;
using execute::Delay;
using execute::OpenOptions;
using execute::Recovery;
using execute::RedealOptions;
using execute::ShardVolumes;
using execute::Silence;
using execute::StepBegin;
using execute::StepDigest;
using execute::StepResult;
using execute::StepUpdate;
using execute::Verification;
using DurableStep = journal::NewestStep;
using StoragePlace = execute::VolumePlace;
using StorageOptions = execute::VolumeOptions;  ///< its places are as in plan::Budget::paths

class EngineParts;
struct TestHooks;

/// Logits of some tokens and of some consecutive rows of the vocabulary, of the type that layers compute in.
struct LogitsSlice {
  std::byte* values =
      nullptr;  ///< [tokens, rows]; those of a token lie `stride` elements after those of the one before
  std::uint64_t tokens = 0, rows = 0, stride = 0;
  std::uint64_t first_row = 0;
  const std::int64_t* labels = nullptr;  ///< [tokens], rows of the whole vocabulary
};

struct Settings {
  plan::Budget budget;
  plan::Rates rates;
  StorageOptions storage;
  std::vector<execute::NodeOptions> nodes;  ///< as in plan::Budget::nodes; fewer: the rest have the default
  execute::DeviceOptions device;            ///< where passes compute, when the budget has a device
  std::string run = "spillway";             ///< identity of the run, written into the volumes
  unsigned threads = 1;                     ///< threads of compute kernels (loss, gradients), the caller included
  /// Training steps between two choices of the pieces that lie in memory, among those that passes ask for
  /// (state::TensorSpec): pieces that most steps ask for swap places with others. 0: those of the plan stay.
  std::uint64_t piece_period = plan::kPiecePeriod;
  /// Moves bytes to and from the other processes of the description's world; null: there are none. After an error close
  /// it before the engine, so that no transfer waits for a process that is gone.
  std::shared_ptr<network::Port> network = nullptr;
  std::shared_ptr<const TestHooks> hooks = nullptr;  ///< engine_testing.h; null: none
};

/// By tensor that is reduced, after a step.
struct RefitState {
  std::size_t tensor = 0;
  std::uint64_t refits = 0;  ///< times that its auxiliary fields were made
  double error = 0;          ///< running estimate of |G - P P' G Q Q'| / |G|, of the steps since; 0: of none
};

/// Steps: block passes, the gradients that the caller makes in them, and what ends a step. After EngineStore::start().
/// Each call throws Error(bad_input) where the protocol of a step does not allow it (execute/protocol.h).
class EngineStep {
 public:
  /// Waits for the updates that the first passes need, and for no other.
  void begin_step(const StepBegin& begin);
  /// Runs the passes of the embedding: row of token t to output[t], [tokens, columns] of the compute type; null: to the
  /// input of the first layer.
  void embedding_forward(std::byte* output = nullptr);
  /// The next pass, when its bytes are there; empty at the end of the step.
  [[nodiscard]] std::optional<BlockPass> next_pass();
  void end_pass();
  /// What next_pass(), gradients and the loss's kernels work in: the arena of a device with memory of its own, else
  /// memory(). The embedding's passes are on the host all the same.
  [[nodiscard]] std::span<std::byte> device_memory() const;
  /// Number of the GPU whose memory that is; none: the host reads it.
  [[nodiscard]] std::optional<int> gpu() const;
  /// The DRAM arena.
  [[nodiscard]] std::span<std::byte> memory() const;
  /// Where a tensor begins in the weights of its block's passes, in elements of the compute type; of one that is
  /// converted in pieces (state::TensorSpec) where convert_pieces() puts these.
  [[nodiscard]] std::uint64_t tensor_offset(std::size_t tensor) const;
  /// In a pass of its block: `count` pieces of a tensor, from number `first` on, one after the other, in the order of
  /// the passes' stream. They are there until the next pieces of any tensor, and at most plan::kPiecesAtOnce.
  void convert_pieces(std::size_t tensor, std::uint64_t first, std::uint64_t count);
  /// Begins to bring them, so that convert_pieces() waits less: of a tensor that passes ask for (state::TensorSpec). A
  /// backward pass may convert what the forward pass of its layer has converted or asked for, and nothing else.
  void ask_pieces(std::size_t tensor, std::uint64_t first, std::uint64_t count);

  /// Backward pass: one micro-batch's gradient of a tensor of the block, in the compute type. Micro-batches rise. Of a
  /// frozen tensor it is refused; so is head_gradient() of a frozen head, whose passes remain for the hidden gradient.
  void gradient(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch);
  /// Whether backward passes of this step may call lend_sum(): the step has more micro-batches than virtual ranks.
  [[nodiscard]] bool can_lend_sums() const;
  /// Backward pass, instead of gradient(): the fp32 sum of a tensor's gradient, to which the caller adds one
  /// micro-batch's in the order of the passes' stream, or which it overwrites. Then end_sum(). Of a reduced tensor, and
  /// of one whose micro-batch had a gradient() or a sum before, it is refused.
  [[nodiscard]] execute::SumLoan lend_sum(std::size_t tensor, std::uint64_t micro_batch);
  void end_sum(std::size_t tensor, std::uint64_t micro_batch);
  /// head_gradient pass: the slice's gradient [rows, columns].
  void head_gradient(const std::byte* values, std::uint64_t micro_batch);
  /// embedding_backward pass: d loss / d embedding output [tokens, columns].
  void embedding_backward(const std::byte* values);

  // Backward pass, of a tensor that is reduced; see above. Error(bad_input) of any other. Gradients,
  // tokens and samples lie in the memory that passes compute in.

  [[nodiscard]] bool wants_whole_gradient(std::size_t tensor, std::uint64_t micro_batch) const;
  /// The first are fitted at once, but with several virtual ranks; later ones are those of the next step, and are
  /// fitted beside the passes where there is room for the gradient.
  void whole_gradient(std::size_t tensor, std::span<const float> gradient);
  /// `tokens` rows of `in`, which are `in_stride` elements apart, times P (side 0) or Q (side 1): out [rank, tokens],
  /// both of the compute type, in the order of the passes' stream.
  void compress(std::size_t tensor, unsigned side, const std::byte* in, std::size_t in_stride, std::size_t tokens,
                std::byte* out);
  void signs(std::size_t tensor, std::span<float> out) const;  ///< [columns], 1 and -1: the same all through a step
  void sample(std::size_t tensor, std::span<const float> values, std::uint64_t micro_batch);  ///< [rows]

  // Kernels of the loss, where passes compute: over the engine's threads, or in the order of a GPU's stream, whose
  // memory the pointers are into then.

  void loss_stats(const LogitsSlice& logits, float* maximum, float* sum, float* gold);
  void loss_gradient(const LogitsSlice& logits, const float* maximum, const float* log_sum, float scale);

  /// Arithmetic between a layer's products (device/fused.h), where passes compute.
  void compute(const device::Work& work);

  /// Ends the step, or the evaluation: norm() and decide() in one.
  StepResult end_step(const StepUpdate& update);
  /// The sum of squares of the gradient, multiplied by the loss scale.
  kernels::Norm norm();
  /// After norm(), instead of decide(): the step ends without a trace, and can be begun again. The gradients of a step
  /// are written to a durable run's paths once: begin it with StepBegin::trial before or after that.
  void abandon_step();
  /// Digests of the passes that have ended since the last call, in a step that was begun with StepBegin::digests.
  [[nodiscard]] std::vector<StepDigest> take_digests();
  /// XXH3-64 over checksums of each MiB, by the engine's threads. Of bytes in host memory.
  [[nodiscard]] std::uint64_t digest(std::span<const std::byte> bytes);
  /// Clip factor, skip and update by the norm of the whole gradient.
  StepResult decide(const kernels::Norm& norm, const StepUpdate& update);

  /// What the next step's loss, and so every gradient of it, is to be multiplied by; grad_norm and the update divide. A
  /// step of fp16 whose gradient is not finite halves it; many finite ones double it. Of other types it is 1.
  [[nodiscard]] execute::LossScaler::State loss_scale() const;
  /// Takes up the loss scale of the run that this one continues.
  void set_loss_scale(const execute::LossScaler::State& state);

 protected:
  explicit EngineStep(const sys::OfProcess<EngineParts>& parts) : parts_(parts) {}
  ~EngineStep() = default;

 private:
  const sys::OfProcess<EngineParts>& parts_;
};

/// State: where it comes from, where it goes, and what is durable of it (docs/decisions/0001-durable-storage.md).
class EngineStore {
 public:
  /// Maps the arena, opens the volumes, starts the lanes. When nothing was found all weights and moments are zero; with
  /// `if_found` the engine is not started then. Where it throws no volume that holds a durable step was made anew.
  Recovery start(const OpenOptions& open_options = {});
  /// Before start(): the step that is durable on this process's volumes, and the line of the run that it is of. Where
  /// processes share a run, the smallest of all is what each is started with (OpenOptions::at_most).
  [[nodiscard]] DurableStep durable_step() const;
  /// The step that is durable on the volumes of one shard that another number of processes has left. This process has
  /// to reach all paths of the shard.
  [[nodiscard]] DurableStep durable_step(const ShardVolumes& shard) const;
  /// After a start() that found nothing, instead of loading weights and state, and before the first commit: brings in
  /// the step that another number of processes has left, bit by bit. The old volumes stay as they are. All processes
  /// call it alike; each is told the same step and payload.
  Recovery redeal(const RedealOptions& options);
  /// Instead of start(): opens the volumes for reading only, for save_weights() and save_state() of the newest durable
  /// step, or of the checkpoint in that directory. `at_most` as in OpenOptions.
  Recovery read_back(const std::optional<std::filesystem::path>& checkpoint,
                     std::int64_t at_most = std::numeric_limits<std::int64_t>::max());
  /// Instead of start(): reads every byte that counts, those of the checkpoints in `pinned`, too.
  [[nodiscard]] Verification verify(const std::vector<std::filesystem::path>& pinned) const;
  /// Waits for the lanes, and until what was committed is durable, and gives everything back. Called by the destructor,
  /// too, which swallows errors.
  void close();

  // Where processes share a run, a step is durable when it is on the drives of all of them. A thread of the caller's
  // carries the votes, from before start(), which waits for the first, to the end: it takes the next vote of this
  // process, gathers those of all, and returns the smallest. The k-th votes of all processes belong together.

  /// Waits for the next step that is durable here (journal::kNoStep: there is none yet), and returns each once. Empty
  /// when close() has been called and no vote will come. Any thread.
  [[nodiscard]] std::optional<std::int64_t> next_vote();
  /// Answers the vote for `step`: `minimum` is the smallest step of all processes. `error`: why there is no answer;
  /// empty: there is one. After an error the last step that all have stands, and whoever waits for a later one is told
  /// it. Any thread.
  void end_vote(std::int64_t step, std::int64_t minimum, const std::string& error = {});

  /// Before close(): what the volumes hold is needed no longer, although StorageOptions says to keep them. They are
  /// removed before the engine lets go of them, so that no run that waits for them goes on in a file without a name.
  /// Does nothing where start() failed: then only what was there before is left.
  void give_up_volumes();

  // Weights and states in and out; these wait for pending updates:

  /// From safetensors. `stored_names`: names in the checkpoint that differ from the description's; an empty one says
  /// that it holds no such tensor, which is zero then.
  void load_weights(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& stored_names);
  /// fp32 values of elements [first, first + size) of tensor number `tensor`. fetch_tensor() serves after read_back(),
  /// too.
  void store_tensor(std::size_t tensor, std::uint64_t first, std::span<const float> values);
  /// Before a tensor of nf4_nested is stored in pieces: all of its values, in order. A whole tensor needs none of this.
  void measure_tensor(std::size_t tensor, std::uint64_t first, std::span<const float> values);
  void fetch_tensor(std::size_t tensor, std::uint64_t first, std::span<float> values);
  /// `stored_names`: as for load_weights(); tensors of an empty name are left out.
  void save_weights(const std::filesystem::path& directory, Bytes max_shard,
                    const std::map<std::string, std::string>& stored_names = {});
  void save_state(const std::filesystem::path& directory);
  /// Moments and remainders from save_state()'s directory, weights from the checkpoint; `step` optimizer steps so far.
  /// Moments of another format are converted; returns the format that was found. Frozen tensors whose stored name is
  /// empty stay as load_weights() left them.
  state::StateFormat load_state(const std::filesystem::path& directory, const std::filesystem::path& weights,
                                std::int64_t step, const std::map<std::string, std::string>& stored_names = {});
  /// Waits until every pending update is done and on its tier, and every committed step is durable.
  void flush();

  // Durability. Where plan().durability is none, these do nothing:

  /// The step just ended, or what was loaded before the first one, becomes durable as soon as all it needs is on the
  /// drives, together with `payload`. It does not wait for that, only for the commit before. A step that was not
  /// committed is committed by the first call that needs its updates. Once a durable run has begun, steps alone change
  /// weights and states.
  void commit(std::string_view payload = {});
  /// Before the first commit: number of the step that was loaded; commits count from there. Default 0.
  void set_step(std::uint64_t step);
  /// Writes the state after the last step as directory/manifest.bin, which names places on the paths: they stay as they
  /// are until release_manifest(). The manifest is of use only with the volumes.
  void save_manifest(const std::filesystem::path& directory);
  /// The file with these bytes, a manifest's, is gone for good, and its places are free for others.
  void release_manifest(std::span<const std::byte> manifest);
  /// After the last step of a run that cannot be saved where it should be: its state stays on the paths, together with
  /// `payload`, and the volumes stay, too. For a durable run that is its newest durable step, and the result is empty;
  /// the run may go on. (Where only checkpoints are durable, this is one without a manifest.) For a run that is not
  /// durable the result is the bytes of a manifest: read_back() takes a directory that has them as manifest.bin. Throws
  /// Error(bad_input) where nothing lies on a path, Error(does_not_fit) where what stays in memory has no room there;
  /// then the run can go on.
  [[nodiscard]] std::vector<std::byte> leave(std::string_view payload);
  /// After leave(), when the run was saved after all: volumes of a run that is not durable are removed at close().
  void take_back();

 protected:
  explicit EngineStore(const sys::OfProcess<EngineParts>& parts) : parts_(parts) {}
  ~EngineStore() = default;

 private:
  const sys::OfProcess<EngineParts>& parts_;
};

/// What was planned and what is happening. It changes nothing.
class EngineTelemetry {
 public:
  [[nodiscard]] plan::PlanSummary summarize_plan() const;
  /// Plans that fit where micro-batches are `batch` rows of `sequence` tokens now and each token more takes so many
  /// bytes of PyTorch's working set, on the host and on the device.
  [[nodiscard]] plan::Fits what_fits(std::uint64_t sequence, std::uint64_t batch, double work_per_token,
                                     double device_per_token) const;
  [[nodiscard]] execute::Counters counters() const;
  /// For each tensor whose pieces are apart its name, and the training steps since start() that asked for each piece.
  [[nodiscard]] std::vector<std::pair<std::string, std::vector<std::uint64_t>>> count_asked_pieces() const;
  /// Volumes whose file was removed or replaced, with its directory or without, since the run opened them. What they
  /// hold can be read until close(), and by nobody afterwards. Takes some microseconds for each path, and up
  /// to a second for one whose server does not answer.
  [[nodiscard]] std::vector<std::filesystem::path> displaced_volumes() const;
  /// Each path, and each lane of a device with memory of its own: "device:to_device", "device:from_device",
  /// "device:device_update". Any thread may ask, between start() and close().
  [[nodiscard]] std::map<std::string, Silence> silence() const;
  /// Empty: other processes do not wait for this one. Any thread may ask, between start() and close().
  [[nodiscard]] std::optional<Delay> lateness() const;
  /// For each NUMA node the bytes of the arena that are planned for it and the bytes that lie there, as the kernel says
  /// page by page now. Empty when DRAM is one tier.
  [[nodiscard]] std::optional<execute::MemoryPlaces> where() const;
  /// JSON in Chrome's trace event format: predicted and measured tasks of the last step that has wholly ended; before
  /// start() what is predicted.
  [[nodiscard]] std::string timeline() const;
  /// The order of a planned step as a picture (plan/step/picture.h). `format`: "svg" or "dot"; Error(bad_input) of any
  /// other.
  [[nodiscard]] std::string graph(std::string_view format) const;
  [[nodiscard]] std::vector<RefitState> refits() const;

 protected:
  explicit EngineTelemetry(const sys::OfProcess<EngineParts>& parts) : parts_(parts) {}
  ~EngineTelemetry() = default;

 private:
  const sys::OfProcess<EngineParts>& parts_;
};

class Engine : public EngineStep, public EngineStore, public EngineTelemetry {
 public:
  /// Plans. Throws Error(does_not_fit) or Error(bad_input); allocates and touches nothing.
  Engine(plan::Description description, Settings settings);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] const plan::Plan& plan() const;
  [[nodiscard]] const state::Layout& layout() const;

 private:
  const sys::OfProcess<EngineParts> parts_;
};

}  // namespace spillway
