// Spillway for C++: one run's state on its tiers, and the schedule that moves it. The only header most users need.
//
// A step is a loop over visits; the caller computes, the engine has the bytes ready:
//
//   spillway::Engine engine(description, settings);   // plans; throws when it does not fit; allocates nothing
//   engine.start();
//   engine.load_weights("checkpoint", {});             // or store_tensor()
//   engine.begin_step({.counts = {tokens}});
//   while (auto visit = engine.next_visit()) {         // forward blocks, then backward
//     ...                                              // visit->weights, visit->input, ...; gradient() in backward
//     engine.end_visit();
//   }
//   auto result = engine.end_step({.learning_rate = 1e-3});
//
// A matrix whose TensorSpec says that it learns in a subspace has a gradient S [rank, rank]: for each micro-batch in
// its backward visit, with the layer's input x [tokens, columns] and output gradient y [tokens, rows],
//
//   if (engine.learns_projectors(t)) engine.learn_projectors(t, y' x);     // in fp32
//   engine.compress(t, 0, y, ...); engine.compress(t, 1, x, ...);          // y P and x Q
//   engine.gradient(t, (y P)' (x Q), m);                                   // of the compute type
//   engine.sample(t, y' (x z));                                            // z from signs(); for projector_errors()
//
// A tensor whose TensorSpec says that it is frozen has a weight alone: no gradient is to be given for it, no moments
// and no master are kept, and no step writes it. Layers below the lowest one that learns have no backward visit, and
// without an embedding that learns there is no embedding_backward visit.
//
// One thread drives an engine. Every call may throw spillway::Error; after an error from a lane only close() helps. A
// child that is forked meanwhile has nothing of it: no memory, no locks; every call there throws Error(unsupported).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/execute/device_options.h"
#include "spillway/execute/loss_scaler.h"
#include "spillway/execute/node_options.h"
#include "spillway/optim/step.h"
#include "spillway/plan/description.h"
#include "spillway/plan/planner.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"
#include "spillway/sys/fork.h"
#include "spillway/sys/ring.h"

namespace spillway {

/// Where a volume is to lie.
struct StoragePlace {
  std::filesystem::path path;
  bool device = false;  ///< a block device, taken whole; else a directory
};

struct StorageOptions {
  std::vector<StoragePlace> places;  ///< as in plan::Budget::paths; must exist, each gets a volume
  bool overwrite = false;            ///< replace volumes of another run, or with durable steps of this one
  bool erase = false;                ///< of block devices: remove what else they hold
  bool keep = false;                 ///< leave the volumes behind when the engine closes
  sys::RingFactory ring = {};        ///< for tests: how the paths move bytes; empty: the machine's best
};

struct Settings {
  plan::Budget budget;
  plan::Rates rates;
  StorageOptions storage;
  std::vector<execute::NodeOptions> nodes;  ///< as in plan::Budget::nodes; fewer: the rest have the default
  execute::DeviceOptions device;            ///< where visits compute, when the budget has a device
  std::string run = "spillway";             ///< identity of the run, written into the volumes
  unsigned threads = 1;                     ///< threads of compute kernels (loss, gradients), the caller included
  bool trace = false;                       ///< keep the tasks' times for timeline()
};

/// What a run is started from. By default anew.
struct Opening {
  bool reopen = false;         ///< keep what the volumes hold, and go on from the newest durable step if there is one
  bool if_found = false;       ///< when nothing is found, change nothing and do not start
  std::uint64_t at_least = 0;  ///< a durable step before this one does not count
  std::optional<std::filesystem::path> checkpoint;  ///< directory that save_manifest() filled: go back to it
  std::vector<std::filesystem::path> pinned;        ///< every such directory that exists: what they name is kept
  /// Instead of `pinned`: what tells them, on the caller's thread, once the volumes are this process's. Another one of
  /// the run may have made and removed some until then.
  std::function<std::vector<std::filesystem::path>()> list_pinned = {};
};

/// What was there.
struct Recovery {
  bool found = false;               ///< weights and states are those of `step`; else, once started, to be loaded
  std::uint64_t step = 0;           ///< training steps done, skipped ones included
  std::int64_t updates = 0;         ///< of them, those that were not skipped
  std::string payload;              ///< what commit() was given for it
  std::size_t chunks = 0;           ///< of the model
  std::size_t replayed = 0;         ///< of them, updated again from their gradients
  std::size_t replayed_steps = 0;   ///< updates of one chunk done again, at most
  double seconds = 0;               ///< that start() took
  std::string words;                ///< one sentence for a person; empty when nothing was found
  std::vector<std::string> damage;  ///< records that were not whole, where others were

  /// Parts of `seconds`: "memory" (mapped, filled, registered), "opening" (volumes, the new generation), "records",
  /// "reading" (snapshots that stay in memory), "replay" (snapshots and gradients of the chunks updated again, and the
  /// new snapshots).
  std::map<std::string, double> phases;
};

/// What verify() tells of bytes that are not those that were written.
struct Damage {
  std::string path;  ///< "path:0"
  std::filesystem::path file;
  Bytes offset = 0, bytes = 0;  ///< in the file
  std::string what;             ///< "exp_avg of model.layers.3.mlp.up_proj.weight (chunk 17) of step 12"
};

struct Verification {
  Bytes bytes = 0;                    ///< read
  std::optional<std::uint64_t> step;  ///< the newest durable one
  std::vector<Damage> damage;
};

/// One block's turn. Pointers are into the engine's memory and valid until end_visit(); null where there is none.
struct Visit {
  plan::VisitKind kind = plan::VisitKind::forward;
  std::size_t block = 0;                  ///< index into the description's blocks
  std::size_t slice = 0;                  ///< embedding and head: slice of the table
  std::uint64_t first_row = 0, rows = 0;  ///< embedding and head: rows of the slice
  std::byte* weights = nullptr;           ///< the block's weights, or the slice's, in the compute type
  std::byte* input = nullptr;             ///< [tokens, hidden]: the block's input; head: output of the last layer
  std::byte* output = nullptr;            ///< forward: to be written; first backward without a head: the last output
  std::byte* hidden_gradient = nullptr;   ///< backward: d loss / d output on entry, d loss / d input on exit
  float* accumulator = nullptr;           ///< head_gradient and first backward: [tokens, hidden] scratch
};

struct StepUpdate {
  double learning_rate = 0;
  double weight_decay = 0;
  double max_grad_norm = 0;        ///< 0: no clipping
  optim::NamedValues others = {};  ///< further hyperparameters (optim/step.h); what is not there has its default
};

struct StepBegin {
  std::span<const std::int64_t> ids;  ///< token ids of all micro-batches; empty without an embedding
  std::vector<std::uint64_t> counts;  ///< tokens of each micro-batch
  bool training = true;               ///< false: forward and head_loss visits only
  /// What end_step() will be given, as far as that is known: what chunks that the plan updates early are updated by. Of
  /// another one than end_step() is given, and where there is none, nothing remains and the result is the same.
  std::optional<StepUpdate> update = std::nullopt;
};

struct StepResult {
  double grad_norm = 0;      ///< before clipping
  double clip = 1;           ///< factor applied to the gradient
  double loss_scale = 1;     ///< of this step; the gradient is given multiplied by it
  bool skipped = false;      ///< a gradient was not finite: no update
  std::int64_t step = 0;     ///< optimizer steps so far
  double seconds = 0;        ///< from begin_step() to here
  double stall_seconds = 0;  ///< of these, waiting in next_visit()
  std::size_t early = 0;     ///< chunks that were updated during backward
  std::size_t undone = 0;    ///< of these, put back: the step was skipped, or decided otherwise
};

class Engine {
 public:
  /// Plans. Throws Error(does_not_fit) or Error(bad_input); allocates and touches nothing.
  Engine(plan::Description description, Settings settings);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] const plan::Plan& plan() const;
  [[nodiscard]] std::string plan_json() const;
  /// {"longest_sequence", "fit_table"} (plan/fits.h), where micro-batches are `batch` rows of `sequence` tokens now and
  /// each token more takes so many bytes of PyTorch's working set, on the host and on the device.
  [[nodiscard]] std::string what_fits(std::uint64_t sequence, std::uint64_t batch, double work_per_token,
                                      double device_per_token) const;
  [[nodiscard]] const state::Layout& layout() const;
  /// Where a tensor begins in its visits' weights, in elements of the compute type.
  [[nodiscard]] std::uint64_t tensor_offset(std::size_t tensor) const;

  /// Maps the arena, opens the volumes, starts the lanes. When nothing was found all weights and moments are zero; with
  /// `if_found` the engine is not started then. Where it throws no volume that holds a durable step was made anew.
  Recovery start(const Opening& opening = {});
  /// Instead of start(): opens the volumes for reading only, for save_weights() and save_state() of the newest durable
  /// step, or of the checkpoint in that directory.
  Recovery read_back(const std::optional<std::filesystem::path>& checkpoint);
  /// Instead of start(): reads every byte that counts, those of the checkpoints in `pinned`, too.
  [[nodiscard]] Verification verify(const std::vector<std::filesystem::path>& pinned) const;
  /// Waits for the lanes, and until what was committed is durable, and gives everything back. Called by the destructor,
  /// too, which swallows errors.
  void close();
  /// Before close(), of volumes that StorageOptions says to keep: what they hold is needed no longer, and they are
  /// removed before the engine lets go of them, so that no run that waits for them goes on in a file without a name.
  /// Nothing where start() did not end well: then only what was there before is left.
  void give_up_volumes();
  /// The DRAM arena; after start().
  [[nodiscard]] std::span<std::byte> memory() const;
  /// Where visits compute: the arena of a device with memory of its own, else memory(). The embedding's visits are on
  /// the host all the same.
  [[nodiscard]] std::span<std::byte> device_memory() const;

  /// Number of the GPU whose memory that is; none: the host reads it.
  [[nodiscard]] std::optional<int> gpu() const;

  // ---- state in and out; these wait for pending updates ----

  /// From safetensors. `stored_names`: names in the checkpoint that differ from the description's; an empty one says
  /// that it holds no such tensor, which is zero then.
  void load_weights(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& stored_names);
  /// fp32 values of elements [first, first + size) of tensor number `tensor`. fetch_tensor() serves after read_back(),
  /// too.
  void store_tensor(std::size_t tensor, std::uint64_t first, std::span<const float> values);
  void fetch_tensor(std::size_t tensor, std::uint64_t first, std::span<float> values);
  /// `stored_names`: as for load_weights(); tensors of an empty name are left out.
  void save_weights(const std::filesystem::path& directory, Bytes max_shard,
                    const std::map<std::string, std::string>& stored_names = {});
  void save_state(const std::filesystem::path& directory);
  /// Moments and residuals from save_state()'s directory, weights from the checkpoint; `step` optimizer steps so far.
  /// Moments of another format are converted; returns the format that was found. Frozen tensors whose stored name is
  /// empty stay as load_weights() left them.
  state::StateFormat load_state(const std::filesystem::path& directory, const std::filesystem::path& weights,
                                std::int64_t step, const std::map<std::string, std::string>& stored_names = {});

  // ---- one step ----

  void begin_step(const StepBegin& begin);
  /// Runs the embedding visits: row of token t to output[t], [tokens, columns] of the compute type; null: to the input
  /// of the first layer.
  void embedding_forward(std::byte* output = nullptr);
  /// The next visit, when its bytes are there; empty at the end of the step.
  [[nodiscard]] std::optional<Visit> next_visit();
  void end_visit();
  /// Backward visit: one micro-batch's gradient of a tensor of the block, in the compute type. Micro-batches rise. Of a
  /// frozen tensor it is refused; so is head_gradient() of a frozen head, whose visits remain for the hidden gradient.
  void gradient(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch);
  // Backward visit, of a tensor that learns in a subspace; see above. Error(bad_input) of any other. Gradients, tokens
  // and samples lie in the memory that visits compute in.
  [[nodiscard]] bool learns_projectors(std::size_t tensor) const;
  /// The first are learned at once; later ones are those of the next step, and are learned beside the visits where
  /// there is room for the gradient.
  void learn_projectors(std::size_t tensor, std::span<const float> gradient);
  /// `tokens` rows of `in`, which are `in_stride` elements apart, times P (side 0) or Q (side 1): out [rank, tokens],
  /// both of the compute type, in the order of the visits' stream.
  void compress(std::size_t tensor, unsigned side, const std::byte* in, std::size_t in_stride, std::size_t tokens,
                std::byte* out);
  void signs(std::size_t tensor, std::span<float> out) const;      ///< [columns], 1 and -1: the same all through a step
  void sample(std::size_t tensor, std::span<const float> values);  ///< [rows]
  /// head_gradient visit: the slice's gradient [rows, columns].
  void head_gradient(const std::byte* values, std::uint64_t micro_batch);
  /// embedding_backward visit: d loss / d embedding output [tokens, columns].
  void embedding_backward(const std::byte* values);
  StepResult end_step(const StepUpdate& update);
  /// Waits until every pending update is done and on its tier, and every committed step is durable.
  void flush();

  // ---- durability (docs/decisions/0001-durable-storage.md); nothing of it does anything when plan().durability is
  // none

  /// The step just ended, or what was loaded before the first one, becomes durable as soon as all it needs is on the
  /// drives, together with `payload`. Does not wait for that, but for the commit before. When it was not called,
  /// whatever needs the step's updates does so. Between commits of a durable run nothing may be stored but by steps.
  void commit(std::string_view payload = {});
  /// Before the first commit: number of the step that was loaded; commits count from there. Default 0.
  void set_step(std::uint64_t step);
  /// The state after the last step as directory/manifest.bin: it stays on the paths until release_manifest(). Good only
  /// with the volumes.
  void save_manifest(const std::filesystem::path& directory);
  /// The manifest with these bytes is gone for good.
  void release_manifest(std::span<const std::byte> manifest);
  /// After the last step of a run that cannot be saved where it should be: what was reached stays on the paths,
  /// together with `payload`, and so do the volumes. Of a run that is durable it is its newest durable step, and empty
  /// is returned; of another one the bytes of a manifest: with them in a file manifest.bin, read_back() of the
  /// directory takes it. Throws Error(bad_input) where nothing lies on a path, Error(does_not_fit) where what stays in
  /// memory has no room there; the run can go on then.
  [[nodiscard]] std::vector<std::byte> leave(std::string_view payload);
  /// It was saved after all: the volumes of a run that is not durable go when the engine closes.
  void take_back();

  // ---- loss scale (weights and gradients of fp16; else it is 1)

  /// What the next step's loss, and so every gradient of it, is to be multiplied by; grad_norm and the update divide.
  /// A step whose gradient is not finite halves it; many finite ones double it.
  [[nodiscard]] execute::LossScaler::State loss_scale() const;
  /// Of the run that this one goes on from.
  void set_loss_scale(const execute::LossScaler::State& state);

  /// By tensor that learns in a subspace, after a step.
  struct Projectors {
    std::size_t tensor = 0;
    std::uint64_t fits = 0;  ///< times that they were learned
    double error = 0;        ///< running estimate of |G - P P' G Q Q'| / |G|, of the steps since; 0: of none
  };
  [[nodiscard]] std::vector<Projectors> projectors() const;

  // ---- kernels of the loss, where visits compute: over the engine's threads, or in the order of a GPU's stream, whose
  // memory the pointers are into then

  void loss_stats(std::byte* logits, std::uint64_t tokens, std::uint64_t rows, std::uint64_t first_row,
                  const std::int64_t* labels, float* maximum, float* sum, float* gold);
  void loss_gradient(std::byte* logits, std::uint64_t tokens, std::uint64_t rows, std::uint64_t first_row,
                     const std::int64_t* labels, const float* maximum, const float* log_sum, float scale);

  /// JSON: bytes per path and direction, busy and stall seconds, notices.
  [[nodiscard]] std::string counters() const;
  /// JSON {path: {"volume", "under_way": requests that it has not answered, "silent_seconds": since it last answered,
  /// or was first asked; 0 when nothing is under way}}. Any thread may ask, between start() and close().
  [[nodiscard]] std::string silence() const;
  /// JSON: of each memory node the bytes of the arena that are planned for it and those that lie there, as the kernel
  /// says page by page now, and the chunks that lie elsewhere; "{}" when DRAM is one tier.
  [[nodiscard]] std::string where() const;
  /// JSON in Chrome's trace event format: predicted and measured tasks of the last step that has wholly ended; before
  /// start() what is predicted.
  [[nodiscard]] std::string timeline() const;

 private:
  class Impl;
  sys::OfProcess<Impl> impl_;
};

}  // namespace spillway
