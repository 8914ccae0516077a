#include "spillway/plan/described.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/plan/derived.h"
#include "spillway/plan/operations.h"
#include "spillway/plan/process_share.h"
#include "spillway/plan/requests.h"
#include "spillway/plan/settings_fields.h"

namespace spillway::plan {
namespace {

/// The share of a machine's memory that may be taken where no budget is given; the rest is left alone.
constexpr double kTaken = 0.9;
/// Host memory of a process with a GPU beside the engine's: interpreter, PyTorch and its device libraries. An estimate;
/// on this machine it is measured.
constexpr Bytes kProcessOfGpu = 3 * GiB / 2;
/// Working sets are planned with this much more than is derived: what holes of the heap take on this machine
/// (model/dry_run), and by how much two dry runs differ. Of a trace, that says what of it counts here.
constexpr double kSlack = 1.5, kGpuSlack = 1.2;
/// A path of which the profile knows no capacity.
constexpr Bytes kAnyCapacity = Bytes{1} << 50;
/// The bytes per element of the update that profiles state rates of.
constexpr double kStatedBytes = 26;
/// A simulated copy's time in plain copies: its target is poisoned first.
constexpr double kSimulatedPasses = 1.5;

class Describer {
 public:
  Describer(const Description& description, const MachineRequest& request, const machine::Profile& profile)
      : description_(description),
        layout_(description_.layout()),
        request_(request),
        out_(request.settings),
        profile_(profile) {
    check_description(description_);
    if (description_.is_shared()) share_machine();
    const auto& work = request_.work;
    const auto size = [](std::uint64_t value) { return std::max<std::uint64_t>(1, value); };
    shape_ = {size(work.sequence), size(work.batch), size(work.query), size(work.key), size(work.feed_forward)};
    gpu_ = !profile.gpus.empty() && request_.gpu;
  }

  DescribedMachine describe() {
    check();
    set_memory();
    set_nodes();
    set_paths();
    set_device();
    DescribedMachine out;
    set_compute(out);
    if (profile_.nodes.size() == 1 && profile_.update_elements_per_second_all_cores == 0) {
      profile_.update_elements_per_second_all_cores = scale(profile_.nodes.front().update_elements_per_second);
    }
    out.settings = std::move(out_);
    out.settings.profile = std::move(profile_);
    return out;
  }

 private:
  /// Reduces the machine to the share of one process.
  void share_machine() {
    const auto processes = static_cast<unsigned>(description_.world.local);
    if (const auto inside = inside_rate(profile_); inside > 0) out_.network_inside = inside;
    profile_ = process_share(std::move(profile_), processes);
    out_.nodes.clear();
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::bad_input, text("the profile of ", profile_.machine, " cannot be planned with: ", what));
  }

  void check() const {
    const bool updates =
        std::ranges::any_of(profile_.nodes, [](const auto& node) { return node.update_elements_per_second > 0; });
    if (!profile_.nodes.empty() && !updates) refuse("no NUMA node has an update rate");
    if (profile_.nodes.empty() && profile_.update_elements_per_second <= 0) refuse("it has no update rate");
    for (const auto& path : profile_.paths) {
      if (path.read_bytes_per_second <= 0) refuse(text("path:", path.name, " lacks the rate of its reads"));
    }
  }

  void set_memory() {
    if (out_.dram_budget == 0) {
      Bytes cards = 0;
      for (const auto& node : profile_.nodes) cards += node.kind == machine::MemoryKind::cxl ? node.capacity : 0;
      out_.dram_budget = static_cast<Bytes>(kTaken * static_cast<double>(profile_.dram_available + cards));
    }
    if (gpu_) out_.process_bytes = std::max(out_.process_bytes, kProcessOfGpu);
  }

  /// One node is DRAM as a single tier, unless it is asked for.
  void set_nodes() {
    if (out_.nodes.empty() && profile_.nodes.size() > 1) {
      for (const auto& node : profile_.nodes) out_.nodes.push_back({.id = node.id, .capacity = node.capacity});
    }
    for (auto& node : out_.nodes) node = node_of(node.id, node.capacity);
    // Transient buffers lie on the first node.
    std::ranges::stable_partition(
        out_.nodes, [&](const NodeSettings& node) { return known(node.id)->kind == machine::MemoryKind::dram; });
  }

  [[nodiscard]] const machine::NodeProfile* known(unsigned id) const {
    const auto node = std::ranges::find(profile_.nodes, id, &machine::NodeProfile::id);
    return node == profile_.nodes.end() ? nullptr : &*node;
  }

  [[nodiscard]] NodeSettings node_of(unsigned id, Bytes capacity) const {
    const auto* node = known(id);
    if (node == nullptr) {
      throw Error(ErrorCode::bad_input, text("node: the profile of ", profile_.machine, " has no numa:", id));
    }
    if (capacity > node->capacity) {
      throw Error(ErrorCode::does_not_fit,
                  text("node: ", human(capacity), " are asked of numa:", id, ", which has ", human(node->capacity)));
    }
    const auto thread = node->update_elements_per_second_thread;
    return {.id = id,
            .capacity = capacity,
            .update = scale(node->update_elements_per_second),
            .update_thread = thread > 0 ? thread : profile_.update_elements_per_second,
            .read = node->read_bytes_per_second};
  }

  /// The rate of this run's updates at the speed of a memory for which a profile states that of AdamW with exact
  /// states. Updates of whole matrices are bound by their products.
  [[nodiscard]] double scale(double stated) const {
    if (description_.optimizer->scope == optim::Scope::matrix) return stated;
    return stated * kStatedBytes / static_cast<double>(state::update_bytes(description_.rule()));
  }

  void set_paths() {
    out_.storage.clear();
    for (auto& path : profile_.paths) {
      out_.storage.push_back(
          {.directory = "path:" + path.name, .capacity = path.capacity > 0 ? path.capacity : kAnyCapacity});
      path = machine::assume_rates(path);
    }
  }

  void set_device() {
    const auto asked = request_.gpu_memory;
    if (request_.simulated > 0) {
      const auto part = static_cast<Bytes>(request_.simulated * static_cast<double>(out_.dram_budget));
      out_.device = {.name = "simulated", .memory = asked > 0 ? asked : part, .in_dram = true};
      if (profile_.gpus.empty()) {
        out_.device->to_device = out_.device->from_device = profile_.copy_bytes_per_second / kSimulatedPasses;
      } else {
        set_link(profile_.gpus.front());
      }
      gpu_ = false;
    } else if (gpu_) {
      const auto& gpu = profile_.gpus.front();
      out_.device = {
          .name = "cuda:0", .memory = asked > 0 ? std::min(asked, gpu.memory) : gpu.memory, .in_dram = gpu.shares_dram};
      set_link(gpu);
      out_.update_cores = std::max(3U, profile_.cores) - 2;  // two are for the caller and for copies
    }
  }

  void set_link(const machine::GpuProfile& gpu) {
    auto& device = *out_.device;
    device.to_device = gpu.to_gpu_bytes_per_second;
    device.from_device = gpu.from_gpu_bytes_per_second;
    device.update = scale(gpu.update_elements_per_second);
    device.links = gpu.links;
    if (!gpu.links.empty()) return;
    for (const auto& node : profile_.nodes) {
      const auto bounded = [](double link, double ceiling) { return ceiling > 0 ? std::min(link, ceiling) : link; };
      device.links.push_back(
          {.node = node.id,
           .to_gpu_bytes_per_second_together = bounded(gpu.to_gpu_bytes_per_second, node.to_gpus_bytes_per_second),
           .from_gpu_bytes_per_second_together =
               bounded(gpu.from_gpu_bytes_per_second, node.from_gpus_bytes_per_second)});
    }
  }

  void set_compute(DescribedMachine& out) {
    const auto compute = gpu_ ? ComputeRates::read_gpu(profile_.gpus.front())
                              : ComputeRates::read_cpus(profile_, description_.computes());
    const auto& trace = request_.work.trace;
    const bool traced = trace && compute.knows_operations();
    out_.seconds = traced ? traced_seconds(trace->passes, compute) : derived_seconds(compute);
    if (trace && !traced) set_entry(trace->passes, compute);
    out.attention_seconds = trace ? traced_attention(trace->passes, compute) : 0.0;
    const auto work = trace ? traced_work(*trace, compute, traced) : derived_work();
    set_work(work);
    out.work_per_token = work.per_token;
  }

  [[nodiscard]] PassSeconds derived_seconds(const ComputeRates& compute) const {
    Rates rates;
    derive_seconds(description_, layout_, shape_, compute, rates);
    return {.forward = rates.forward,
            .backward = rates.backward,
            .kept_forward = rates.kept_forward,
            .kept_backward = rates.kept_backward,
            .head_loss = rates.head_loss,
            .head_gradient = rates.head_gradient,
            .tail_forward = rates.tail_forward,
            .tail_backward = rates.tail_backward,
            .between = rates.between};
  }

  [[nodiscard]] PassSeconds traced_seconds(const TracedPasses& passes, const ComputeRates& compute) const {
    const auto times = static_cast<double>(description_.count_own_accumulation());
    PassSeconds out;
    for_each_field<PassSeconds>([&](const auto& field) {
      if (passes.contains(field.name)) field.set(out, seconds_of(passes, field.name, times, compute));
    });
    return out;
  }

  /// Seconds of a step that attention takes: of every layer a forward and a backward pass, over this process's
  /// micro-batches.
  [[nodiscard]] double traced_attention(const TracedPasses& passes, const ComputeRates& compute) const {
    double each = 0;
    for (const auto* kind : {"forward", "backward"}) {
      if (const auto pass = passes.find(kind); pass != passes.end()) {
        each += attention_seconds(pass->second.each, compute);
      }
    }
    return each * static_cast<double>(layout_.layers().size()) *
           static_cast<double>(description_.count_own_accumulation());
  }

  /// A working set, and by how much it grows with every token.
  struct Work {
    double bytes = 0, per_token = 0;
  };

  [[nodiscard]] Work derived_work() const {
    const auto bytes = (gpu_ ? kGpuSlack : kSlack) * static_cast<double>(derive_work(description_, layout_, shape_));
    return {bytes, bytes / shape_.tokens()};
  }

  /// `timed`: by the rates of operations.
  [[nodiscard]] Work traced_work(const Trace& trace, const ComputeRates& compute, bool timed) const {
    auto slack = gpu_ ? kGpuSlack : trace.slack;
    if (!gpu_ && timed && measured_briefly(trace.few, compute)) slack = trace.brief_slack;
    const auto libraries = static_cast<double>(gpu_ ? 0 : compute.libraries_bytes());
    return {slack * trace.bytes + libraries, slack * trace.per_token};
  }

  /// True if a plan on the machine itself would measure this briefly (model/quick_dry_run), and so count more. The
  /// criterion is the time of a few tokens there.
  [[nodiscard]] bool measured_briefly(const FewTokens& few, const ComputeRates& compute) const {
    double seconds = 0;
    for (const auto& [kind, pass] : few.passes) seconds += seconds_of(few.passes, kind, 1, compute);
    return seconds * shape_.tokens() / few.tokens > few.most_seconds;
  }

  void set_work(const Work& work) {
    if (gpu_) {
      const auto& gpu = profile_.gpus.front();
      out_.device->work = gpu.reserved + static_cast<Bytes>(work.bytes) + request_.work.device_bytes;
      out_.work_bytes = gpu.shares_dram ? out_.device->work : 0;
    } else {
      out_.work_bytes = static_cast<Bytes>(work.bytes);
    }
    out_.work_bytes += request_.work.host_bytes;
  }

  /// Seconds in which images become features, by their products, where nothing else of a trace has rates.
  void set_entry(const TracedPasses& passes, const ComputeRates& compute) {
    const auto times = static_cast<double>(description_.count_own_accumulation());
    out_.seconds.entry_forward = seconds_of(passes, "entry_forward", times, compute);
    out_.seconds.entry_backward = seconds_of(passes, "entry_backward", times, compute);
  }

  const Description description_;
  const state::Layout layout_;
  const MachineRequest& request_;
  EngineSettings out_;
  machine::Profile profile_;
  StepShape shape_;
  bool gpu_ = false;
};

}  // namespace

DescribedMachine describe_machine(const Description& description, const MachineRequest& request,
                                  const machine::Profile& profile) {
  return Describer(description, request, profile).describe();
}

}  // namespace spillway::plan
