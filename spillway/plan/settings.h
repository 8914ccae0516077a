// Settings of an engine in the words of the configuration, and the budget and rates that follow from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/machine/profile.h"
#include "spillway/plan/description.h"

namespace spillway::plan {

/// A storage path: a directory, or a block device that is taken whole.
struct PathSettings {
  std::string directory, device;        ///< one of them is given
  Bytes capacity = 0;                   ///< for the run
  std::optional<Bytes> endurance = {};  ///< bytes that may be written to it in its life; empty: a usual drive's
  bool remote = false;                  ///< its drive is by another NUMA node than the compute device
  std::optional<unsigned> node = {};    ///< that node
};

/// A tier of host memory. The first is the compute device's, files are last.
struct NodeSettings {
  NodeKind kind = NodeKind::numa;
  unsigned id = 0;           ///< of a node the kernel's number, of a file that among the files
  Bytes capacity = 0;        ///< of `dram` it is what the budget leaves
  std::string directory;     ///< of a file
  bool anywhere = false;     ///< its memory is not bound to a node, as tests have it
  double limit = 0;          ///< elements per second that its update lane is held down to; 0: none
  double update = 0;         ///< elements per second
  double update_thread = 0;  ///< elements per second of one thread
  double read = 0;           ///< bytes per second
};

/// A compute device with memory of its own.
struct DeviceSettings {
  std::string name = "simulated";                ///< or "cuda:N"
  std::uint64_t stream = 0;                      ///< handle of the caller's CUstream
  Bytes memory = 0;                              ///< that may be used there
  Bytes work = 0;                                ///< of it, PyTorch's working set
  bool in_dram = false;                          ///< its memory counts in DRAM, too
  double to_device = 0, from_device = 0;         ///< bytes per second of its link, both at once
  std::vector<machine::LinkProfile> links = {};  ///< the same by NUMA node
  double latency = 0;                            ///< seconds that a copy takes beside its bytes
  double update = 0;     ///< elements per second that it updates; 0: unknown, and it updates none unless asked
  bool bounded = false;  ///< copies and updates of a simulated device take at least as long as these rates say
  /// Shares, as DeviceTier has them; empty: the planner decides.
  std::optional<double> weight = {}, activation = {}, state = {}, device_updated = {}, grad = {};
  std::optional<bool> applies_changes = {};  ///< the same
};

/// A share in memory, or the name of the tier of host memory that all of a group lies on.
using ShareOrTier = std::variant<double, std::string>;

/// Empty: the planner decides.
struct PlacementSettings {
  std::optional<double> weight = {}, state = {};
  std::optional<ShareOrTier> grad = {}, activation = {};
};

/// Seconds of the passes of the largest step, by kind. 0: unknown.
struct PassSeconds {
  double forward = 0, backward = 0;
  std::optional<double> kept_forward = {};   ///< of a layer that keeps what autograd saves; empty: as forward
  std::optional<double> kept_backward = {};  ///< empty: a forward pass less than backward
  double head_loss = 0, head_gradient = 0;
  double tail_forward = 0, tail_backward = 0;    ///< of the last layer block when a head follows
  double between = 0;                            ///< once a step, beside its passes
  double entry_forward = 0, entry_backward = 0;  ///< of the first layer beside a layer's: images become features

  bool operator==(const PassSeconds&) const = default;
};

/// The same of passes that take so many times as long.
[[nodiscard]] PassSeconds scale(PassSeconds seconds, double factor);

/// Steps between two choices of the experts in memory. Sixteen tell an expert that half of the steps ask for from one
/// that few ask for, and the reads of a choice are few beside those of so many steps.
inline constexpr std::uint64_t kPiecePeriod = 16;

/// Values that an engine plans and opens a run with.
struct EngineSettings {
  Bytes dram_budget = 0;      ///< for the whole process
  Bytes process_bytes = 0;    ///< that the process holds before the arena
  Bytes work_bytes = 0;       ///< of PyTorch's working set
  bool keeps_logits = false;  ///< the caller keeps logits of slices of the head, as many as the plan says
  SavedActivations saved_activations = {};
  PlacementSettings placement = {};
  std::uint64_t window = 0;  ///< blocks in flight in backward; 0: the planner decides
  std::vector<PathSettings> storage = {};
  std::optional<unsigned> near = {};     ///< NUMA node of the compute device
  std::vector<NodeSettings> nodes = {};  ///< none: DRAM is one tier
  machine::Profile profile = {};         ///< rates of the machine
  PassSeconds seconds = {};
  std::optional<Durability> durability = {};  ///< empty: `step` when anything is on storage
  std::uint32_t checkpoints = 0;              ///< that stay on the paths at once while the run goes on
  bool resumes = false;                       ///< the paths hold steps of the run
  Updates update_schedule = Updates::automatic;
  bool speculative_updates = false;
  bool clipping = true;                       ///< steps clip
  std::uint64_t piece_period = kPiecePeriod;  ///< steps between two choices of the experts in memory; 0: none
  unsigned update_cores = 0;                  ///< that only updates use
  unsigned threads = 1;                       ///< of compute kernels, the caller included
  std::string run = "spillway";               ///< identity of the run
  bool overwrite = false;                     ///< volumes of another run
  bool erase = false;                         ///< of block devices: remove what else they hold
  bool keep = false;                          ///< the volumes stay when the engine closes
  std::optional<DeviceSettings> device = {};  ///< empty: passes compute in host memory
  double network_inside = 0;                  ///< bytes per second between processes of this machine
  std::optional<Saving> saving = {};          ///< empty: nothing is saved, or nobody knows what
  std::vector<FileSystem> file_systems = {};  ///< none: nothing is known of them
};

/// Throws Error(bad_input) that names a key whose value makes no sense.
[[nodiscard]] Budget make_budget(const EngineSettings& settings);

/// The rates of as much of the machine as the settings name. Throws Error(bad_input).
[[nodiscard]] Rates make_rates(const EngineSettings& settings);

}  // namespace spillway::plan
