#include "spillway/plan/planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>

#include "spillway/base/error.h"
#include "spillway/plan/arena_layout.h"
#include "spillway/plan/classes.h"
#include "spillway/plan/device_choice.h"
#include "spillway/plan/largest.h"
#include "spillway/plan/living.h"
#include "spillway/plan/nodes.h"
#include "spillway/plan/reserve.h"
#include "spillway/plan/subspace_memory.h"
#include "spillway/plan/subspace_share.h"

namespace spillway::plan {
namespace {

using state::BlockRole;

/// A backlog of writes may take some steps to show.
constexpr unsigned kSimulatedSteps = 8;
/// Early updates are chosen when a step takes at most this much of the time it takes without: they cost memory, and an
/// update more where they are put back.
constexpr double kWorthIt = 0.99;

/// Of lookahead (Planner::scaled()), in the order in which they are tried.
constexpr std::array<std::uint32_t, 5> kLevels{4, 3, 2, 1, 0};

enum class Group : std::uint8_t { weight, activation, grad, state };

/// What can be made resident together: a block's weights, one border, one chunk's state.
struct Unit {
  Group group;
  Index first = 0;  ///< chunk; border for activations
  Index count = 1;
  Bytes bytes = 0;
};

/// Of `all`; none: 0.
std::size_t share_of(const std::optional<double>& share, std::size_t all) {
  return static_cast<std::size_t>(std::lround(share.value_or(0) * static_cast<double>(all)));
}

/// By chunk, activations by border: whether it stays.
template <class Residencies>
auto& flags_of(Residencies& residency, Group group) {
  return group == Group::weight       ? residency.weight
         : group == Group::activation ? residency.activation
         : group == Group::grad       ? residency.grad
                                      : residency.state;
}

class Planner {
 public:
  Planner(const Description& description, const state::Layout& layout, const Budget& budget, const Rates& rates,
          Durability durability, std::optional<UpdatedThere> there = {})
      : description_(description),
        layout_(layout),
        budget_(budget),
        rates_(rates),
        durability_(durability),
        redo_{.gradients = durability == Durability::step, .period = kImagePeriod},
        rule_(description.rule()),
        bytes_(field_bytes(description.type)),
        there_(there) {}

  Plan make() {
    check_placement();
    check_updates();
    check_learning();
    check_device_state();
    choose_device();
    list_units();
    find_room();
    choose();
    check_path();
    return finish();
  }

  [[nodiscard]] Bytes fixed() const noexcept {
    const bool in_dram = budget_.device && budget_.device->in_dram;
    return budget_.process + budget_.work + kEngineBytes + subspaces_ + workspace_ + (in_dram ? device_.bytes() : 0);
  }

  /// Blocks that have room to live on the device.
  std::size_t most_living() { return device_.most_living(device_schedule()); }

  /// Whether something has to lie on a path: the caller placed it there, or not all of the rest fits in DRAM. False
  /// says nothing.
  bool spills() {
    if (!budget_.has_path() || budget_.device) return false;
    choose_device();
    list_units();
    find_room();
    const auto base = fixed_residency();
    const auto most = with_free(base, free_.size());
    if (!std::ranges::all_of(units_, [&](const Unit& unit) { return flags_of(most, unit.group)[unit.first]; })) {
      return true;
    }
    return std::ranges::none_of(kLevels, [&](std::uint32_t level) { return try_it(most, scaled(level)); });
  }

  /// Smallest arena this placement allows.
  Bytes smallest() {
    choose_device();
    list_units();
    return measure(fixed_residency(), scaled(0)).second;
  }

 private:
  void find_room() {
    room_ = budget_.dram > fixed() ? budget_.dram - fixed() : 0;
    for (const auto& node : budget_.nodes) capacity_.push_back(node.capacity);
  }

  [[nodiscard]] std::optional<double> wish(Group group) const {
    const auto& p = budget_.placement;
    const std::optional<double> all[] = {p.weight, p.activation, p.grad, p.state};
    return all[static_cast<int>(group)];
  }

  void check_placement() const {
    if (budget_.has_path()) return;
    if (durability_ == Durability::step) {
      throw Error(ErrorCode::bad_input,
                  "durability: step keeps every step on the storage paths, but there is none; add --storage DIR or use "
                  "--durability none");
    }
    for (const auto group : {Group::weight, Group::activation, Group::grad, Group::state}) {
      if (wish(group).value_or(1) < 1) {
        throw Error(ErrorCode::bad_input,
                    "placement asks for a storage path, but there is none; add --storage DIR or use --placement dram");
      }
    }
  }

  void check_updates() const {
    if (budget_.updates != Updates::early || !budget_.clipping || budget_.speculate) return;
    throw Error(ErrorCode::bad_input,
                "update_schedule early updates chunks during backward, but the factor that max_grad_norm clips by is "
                "known only after it; add --speculative_updates (by a predicted factor, undone when it was wrong), or "
                "use --max_grad_norm 0 or --update_schedule deferred");
  }

  void check_learning() const {
    if (layout_.learning_parameters() > 0) return;
    throw Error(ErrorCode::bad_input, "all tensors of the model are frozen, so there is nothing to train");
  }

  void check_device_state() const {
    if (!budget_.device || budget_.device->state.value_or(0) == 0) return;
    if (const auto why = no_device_update(rule_); !why.empty()) {
      throw Error(ErrorCode::bad_input, text("placement asks for states on the device, but ", why,
                                             "; leave them to the host, or train with the first"));
    }
  }

  /// Most traffic saved per byte first. A gradient that is logged is written wherever it stays.
  [[nodiscard]] std::array<Group, 4> groups() const {
    if (redo_.gradients) return {Group::weight, Group::activation, Group::state, Group::grad};
    return {Group::weight, Group::activation, Group::grad, Group::state};
  }

  // ---- units ----

  void list_units() {
    if (!units_.empty()) return;
    for (const auto group : groups()) {
      if (group == Group::activation) {
        list_borders();
      } else {
        list_fields(group);
      }
    }
  }

  void list_borders() {
    const auto bytes = description_.border_bytes();
    for (auto i = first_backward(layout_); i < borders(); ++i) units_.push_back({Group::activation, i, 1, bytes});
  }

  [[nodiscard]] Index borders() const {
    return static_cast<Index>(std::count_if(layout_.blocks().begin(), layout_.blocks().end(),
                                            [](const auto& b) { return b.role == BlockRole::layer; }));
  }

  void list_fields(Group group) {
    for (const auto& block : layout_.blocks()) {
      const auto first = static_cast<Index>(block.first_chunk);
      const auto chunks = static_cast<Index>(block.chunks);
      if (block.role == BlockRole::layer && elsewhere(group, first)) continue;
      if (block.role == BlockRole::layer && group != Group::state) {
        if (group == Group::weight) {
          units_.push_back({group, first, chunks, block.elements * bytes_.weight});
        } else if (const auto learning = static_cast<Index>(block.learning_chunks); learning > 0) {
          Bytes bytes = 0;
          for (Index c = first; c < first + learning; ++c) bytes += bytes_of(group, layout_.chunks()[c]);
          units_.push_back({group, first, learning, bytes});
        }
        continue;
      }
      for (Index c = first; c < first + chunks; ++c) {
        if (elsewhere(group, c)) continue;
        if (group == Group::grad && !has_dense_grad(description_, layout_, c)) continue;
        if (group == Group::state && !has_state(layout_.chunks()[c].learning)) continue;
        units_.push_back({group, c, 1, bytes_of(group, layout_.chunks()[c])});
      }
    }
  }

  [[nodiscard]] Bytes bytes_of(Group group, const state::Chunk& chunk) const {
    return group == Group::weight ? weight_bytes(rule_, chunk)
           : group == Group::grad ? grad_bytes(rule_, chunk)
                                  : state_bytes(rule_, chunk);
  }

  static void keep(Residency& residency, const Unit& unit) {
    std::fill_n(flags_of(residency, unit.group).begin() + unit.first, unit.count, true);
  }

  /// On a device, and nowhere on the host.
  [[nodiscard]] bool elsewhere(Group group, Index chunk) const {
    return group == Group::grad ? nothing_.gradient_there(chunk) : nothing_.on_device(chunk);
  }

  /// What there is none of counts as kept, and what lives on a device: nothing of it is on a path.
  [[nodiscard]] Residency nothing_with(const std::optional<DeviceResidency>& stays) const {
    const auto chunks = layout_.chunks().size();
    Residency out{std::vector<bool>(chunks, false), std::vector<bool>(chunks, false), std::vector<bool>(chunks, false),
                  std::vector<bool>(borders(), false)};
    out.device = stays;
    for (Index c = 0; c < chunks; ++c) {
      const bool there = out.on_device(c);
      out.weight[c] = there;
      out.state[c] = there || !has_state(layout_.chunks()[c].learning);
      out.grad[c] = out.gradient_there(c) || !has_gradient(layout_.chunks()[c].learning);
    }
    std::fill_n(out.activation.begin(), first_backward(layout_), true);
    return out;
  }

  void choose_device() {
    if (budget_.device) {
      const auto blocks = there_ ? *there_ : asked_there();
      plan_.living = blocks.living;
      plan_.passing = blocks.passing;
      device_.choose(device_schedule(), blocks);
    }
    nothing_ = nothing_with(device_.residency());
  }

  /// As the budget says.
  [[nodiscard]] UpdatedThere asked_there() const {
    const auto most = device_.may_live();
    const auto living = share_of(budget_.device->state, most);
    return {living, share_of(budget_.device->passing, most - living)};
  }

  [[nodiscard]] DeviceSchedule device_schedule() const {
    return [this](const DeviceResidency& stays, std::uint32_t ahead) {
      return make_schedule(description_, layout_, nothing_with(stays), {.device = ahead, .join = budget_.device->join},
                           redo_);
    };
  }

  /// What the caller fixed; everything when there is no path.
  Residency fixed_residency() {
    auto residency = nothing_;
    free_.clear();
    for (const auto group : groups()) {
      const auto share = budget_.has_path() ? wish(group) : std::optional<double>(1.0);
      Bytes total = 0, kept = 0;
      for (const auto& unit : units_) total += unit.group == group ? unit.bytes : 0;
      for (std::size_t i = 0; i < units_.size(); ++i) {
        const auto& unit = units_[i];
        if (unit.group != group) continue;
        if (!share) {
          free_.push_back(i);
        } else if (static_cast<double>(kept) < *share * static_cast<double>(total) - 0.5) {
          keep(residency, unit);
          kept += unit.bytes;
        }
      }
    }
    return residency;
  }

  [[nodiscard]] Residency with_free(Residency residency, std::size_t count) const {
    for (std::size_t i = 0; i < count; ++i) keep(residency, units_[free_[i]]);
    return residency;
  }

  // ---- search ----

  struct Choice {
    Residency residency;
    std::uint32_t level = 0;
    double seconds = 0;
    Bytes moved = 0;
    const Dealing* dealing = nullptr;

    [[nodiscard]] bool any() const noexcept { return !residency.weight.empty(); }
    [[nodiscard]] bool better_than(const Choice& other) const noexcept {
      return seconds != other.seconds ? seconds < other.seconds : moved < other.moved;
    }
  };

  /// Level 0 is the least that works: a block's gradient has left before the next is made. Each level keeps more chunks
  /// in flight.
  [[nodiscard]] Lookahead scaled(std::uint32_t level) const {
    Lookahead out{.state_read = 1, .write = 1, .weight_read = 1, .backward = 1, .grad_write = level, .head = 1};
    if (level > 1) {
      out = {.state_read = level,
             .write = level,
             .weight_read = std::min(level, 8U),
             .backward = 2,
             .grad_write = 2,
             .head = 2};
    }
    out.device = device_.ahead();
    if (budget_.device) out.join = budget_.device->join;
    if (budget_.window > 0) out.backward = static_cast<std::uint32_t>(budget_.window);
    const auto most = static_cast<std::uint32_t>(layout_.chunks().size());
    out.state_read = std::min(out.state_read, most);
    out.write = std::min(out.write, most);
    return out;
  }

  std::pair<Schedule, Bytes> measure(const Residency& residency, const Lookahead& lookahead) const {
    auto schedule = make_schedule(description_, layout_, residency, lookahead, redo_);
    const auto bytes = arena_of(schedule);
    return {std::move(schedule), bytes};
  }

  /// Lays the schedule out, with room above what is resident to load and save a chunk, and to update it again.
  Bytes arena_of(Schedule& schedule) const {
    auto scratch = largest_chunk_bytes(rule_, layout_);
    if (redo_.gradients) {
      scratch += largest_grad_bytes(rule_, layout_);
      if (schedule.rows != kNone) scratch += round_up(schedule.buffers[schedule.rows].bytes, 4096);
    }
    const auto laid_out = lay_out(schedule);  // first: resident_bytes() reads the offsets it gives
    return std::max(laid_out, resident_bytes(schedule) + scratch);
  }

  bool try_it(const Residency& residency, const Lookahead& lookahead) {
    const bool done = lay_out_in_room(residency, lookahead);
    ample_ = ample_ && done;
    return done;
  }

  bool lay_out_in_room(const Residency& residency, const Lookahead& lookahead) {
    auto schedule = make_schedule(description_, layout_, residency, lookahead, redo_);
    if (live_peak(schedule) > room_) return false;
    const auto bytes = arena_of(schedule);
    if (bytes > room_) return false;
    auto placed = residency;
    std::vector<Region> regions;
    if (dealing_ != nullptr && !place(schedule, bytes, placed, regions)) return false;
    set_device_arena(schedule);
    plan_.schedule = std::move(schedule);
    plan_.arena = regions.empty() ? bytes : regions.back().end;
    plan_.regions = std::move(regions);
    plan_.residency = std::move(placed);
    plan_.lookahead = lookahead;
    return true;
  }

  void set_device_arena(Schedule& schedule) {
    if (!budget_.device) return;
    plan_.device_workspace = device_workspace(layout_, description_.tied_head, description_.tokens);
    plan_.device_arena = round_up(lay_out(schedule, Tier::device), 256) + plan_.device_workspace.bytes();
  }

  /// Deals what stays to the nodes and lays it out so; false when a node or the budget is too small.
  bool place(Schedule& schedule, Bytes bytes, Residency& residency, std::vector<Region>& regions) const {
    const auto padding = node_padding(capacity_.size(), layout_, bytes_.weight);
    auto room = capacity_;
    const auto moving = fixed() + bytes - resident_bytes(schedule);
    const auto take = [](Bytes& from, Bytes what) { from -= std::min(from, what); };
    if (room[0] < moving) return false;
    take(room[0], moving);
    for (auto& it : room) take(it, padding);
    auto node = deal(description_, layout_, residency, rates_, *dealing_, std::move(room), budget_.streams_weights);
    if (!node) return false;
    residency.node = std::move(*node);
    set_nodes(schedule, residency);
    regions = place_on_nodes(schedule, layout_, bytes);
    return regions.back().end <= room_;
  }

  /// With several memory nodes the fastest way to deal what stays to them; a later way is worth it from a percent on.
  /// What is then left lengthens the lookahead.
  void choose() {
    const auto base = fixed_residency();
    if (budget_.has_nodes()) dealings_ = dealings(rates_, capacity_.size(), budget_.has_path());
    std::vector<const Dealing*> ways;
    for (const auto& dealing : dealings_) ways.push_back(&dealing);
    if (ways.empty()) ways.push_back(nullptr);
    Choice best;
    for (const auto* way : ways) {
      dealing_ = way;
      const auto now = fastest(base);
      if (!now.any()) continue;
      if (!best.any() || now.seconds < kWorthIt * best.seconds) best = now;
    }
    if (!best.any()) refuse(base);
    dealing_ = best.dealing;
    const auto chunks = layout_.chunks().size();
    try_it(best.residency, scaled(best.level));
    choose_early(best.residency, scaled(best.level));
    largest(chunks > best.level ? chunks - best.level : 0, [&](std::size_t more) {
      return try_it(best.residency, scaled(best.level + static_cast<std::uint32_t>(more)));
    });
  }

  /// For each lookahead the most that can stay in memory; of these plans the fastest, and of equals the one that moves
  /// least. None when nothing fits.
  Choice fastest(const Residency& base) {
    Choice best;
    for (const auto level : kLevels) {
      if (!try_it(base, scaled(level))) continue;
      largest(free_.size(), [&](std::size_t n) { return try_it(with_free(base, n), scaled(level)); });
      const auto moved = traffic(plan_.schedule);
      const Choice now{plan_.residency, level, predict().step_seconds, moved.read + moved.written, dealing_};
      if (!best.any() || now.better_than(best)) best = now;
    }
    return best;
  }

  /// Of the chunks that can be updated early as many as have room for their old versions, in the order in which their
  /// gradients are complete: the first have the most time.
  void choose_early(Residency& residency, const Lookahead& lookahead) {
    if (budget_.updates == Updates::deferred || (budget_.clipping && !budget_.speculate)) return;
    const auto order = early_order();
    const auto with_undo = [&](std::size_t count) {
      auto out = residency;
      out.undo.assign(layout_.chunks().size(), false);
      for (std::size_t i = 0; i < count; ++i) out.undo[order[i]] = true;
      return out;
    };
    const auto deferred = predict().step_seconds;
    const auto most = largest(order.size(), [&](std::size_t n) { return try_it(with_undo(n), lookahead); });
    // Asked for: all that fit. Else the fastest of that many, half of them, and so on: they take time of backward's.
    std::size_t best = budget_.updates == Updates::early ? most : 0;
    auto seconds = best > 0 ? predict().step_seconds : kWorthIt * deferred;
    for (auto count = most; budget_.updates == Updates::automatic && count > 0; count /= 2) {
      if (!try_it(with_undo(count), lookahead)) continue;
      const auto found = predict().step_seconds;
      if (found >= seconds) continue;
      best = count;
      seconds = found;
    }
    if (best > 0) {
      residency = with_undo(best);
      plan_.early_saves = deferred - seconds;
    }
    try_it(residency, lookahead);
  }

  [[nodiscard]] std::vector<Index> early_order() const {
    std::vector<Index> out;
    for (const auto& visit : plan_.schedule.visits) {
      if (visit.grad == kNone) continue;
      const auto& block = layout_.blocks()[visit.block];
      const bool layer = visit.kind == VisitKind::backward;
      const auto first = static_cast<Index>(block.first_chunk + (layer ? 0 : visit.slice));
      for (Index c = first; c < first + (layer ? block.chunks : 1); ++c) {
        if (can_be_early(layout_, plan_.residency, c)) out.push_back(c);
      }
    }
    return out;
  }

  /// Bytes of a step over the paths.
  struct Traffic {
    Bytes read = 0, written = 0, to_device = 0, from_device = 0;
  };
  [[nodiscard]] static Traffic traffic(const Schedule& schedule) {
    Traffic sum;
    for (const auto& task : schedule.tasks) {
      if (schedule.settled_by_early(task) || schedule.runs_once(task) || follows_learning(task)) continue;
      if (task.lane == Lane::read) sum.read += task.bytes;
      if (task.lane == Lane::write) sum.written += task.bytes / task.every;
      if (task.lane == Lane::to_device) sum.to_device += task.bytes;
      if (task.lane == Lane::from_device) sum.from_device += task.bytes / task.every;
    }
    return sum;
  }

  [[nodiscard]] Simulation predict() const {
    auto schedule = plan_.schedule;
    add_reuse_dependencies(schedule);
    return simulate(schedule, description_, layout_, rates_, kSimulatedSteps, storage_name());
  }

  [[nodiscard]] std::string storage_name() const { return budget_.paths.size() == 1 ? budget_.paths[0].name : "paths"; }

  // ---- refusals ----

  [[noreturn]] void refuse(const Residency& base) {
    const auto arena = measure(base, scaled(0)).second + node_padding(capacity_.size(), layout_, bytes_.weight);
    if (arena <= room_ && budget_.has_nodes()) refuse_nodes(base);
    refuse_dram(arena);
  }

  /// The first node is what settings can enlarge for sure: what comes and goes lies there.
  [[noreturn]] void refuse_nodes(const Residency& base) {
    std::string there;
    for (std::size_t n = 0; n < capacity_.size(); ++n) {
      there += text(there.empty() ? "" : ", ", budget_.nodes[n].name(), " with ", human(capacity_[n]));
    }
    const auto schedule = measure(base, scaled(0));
    const auto moving = schedule.second - resident_bytes(schedule.first);
    const auto own = capacity_[0];
    const auto enough =
        ceil_div(fixed() + schedule.second + node_padding(capacity_.size(), layout_, bytes_.weight), MiB);
    const auto least = enough - largest(enough - std::min(enough, own / MiB), [&](std::size_t less) {
                         capacity_[0] = (enough - less) * MiB;
                         return std::ranges::any_of(dealings_, [&](const Dealing& way) {
                           dealing_ = &way;
                           return try_it(base, scaled(0));
                         });
                       });
    throw Error(
        ErrorCode::does_not_fit,
        text("does not fit on the memory nodes: the smallest plan for this placement needs ", human(fixed() + moving),
             " on ", budget_.nodes[0].name(), " for the process and what comes and goes, and ",
             human(schedule.second - moving), " there and on the others for what stays, and there is ", there,
             ". It would fit with --node ", budget_.nodes[0].id, "=", least, "MiB",
             budget_.has_path() ? ", with --placement auto" : ", with --storage DIR",
             " or with a smaller max_length or per_device_train_batch_size"));
  }

  [[noreturn]] void refuse_dram(Bytes arena) const {
    const auto fixed = this->fixed();
    auto message = text("does not fit in DRAM: the smallest plan for this placement needs ", human(fixed + arena),
                        " (interpreter and libraries ", human(budget_.process), ", PyTorch's working set ",
                        human(budget_.work), ", arena ", human(arena), ", engine ",
                        human(kEngineBytes + subspaces_ + workspace_), "), and dram_budget is ", human(budget_.dram),
                        ". It would fit with --dram_budget ", ceil_div(fixed + arena, MiB), "MiB");

    auto other = budget_;
    if (!other.has_path()) other.paths.emplace_back();
    other.placement = {};
    const auto spilled = Planner(description_, layout_, other, rates_, durability_).smallest();
    if (spilled + MiB < arena) {
      message += budget_.has_path()
                     ? text(", with --placement auto and --dram_budget ", ceil_div(fixed + spilled, MiB), "MiB")
                     : text(", with --storage DIR and --dram_budget ", ceil_div(fixed + spilled, MiB), "MiB");
    }
    message += ", or with a smaller max_length or per_device_train_batch_size";
    throw Error(ErrorCode::does_not_fit, message);
  }

  void check_path() {
    auto need = budget_.has_path()
                    ? storage_need(description_, layout_, plan_.residency, durability_, budget_.checkpoints)
                    : StorageNeed{};
    if (need.bytes() > 0) plan_.path_overhead = budget_.superblock;
    if (durability_ != Durability::none) plan_.path_overhead += budget_.records;
    const bool durable = durability_ != Durability::none || (!budget_.durability && need.bytes() > 0);
    if (budget_.saving) {
      plan_.saving = saving_need(description_, layout_, *budget_.saving, durable && need.classes.contains("state"));
    }
    const auto budget = leave_room(budget_, plan_.saving.value_or(SavingNeed{}), need, plan_.path_overhead);
    if (!budget_.has_path()) return;
    plan_.volumes = reserve(budget, rates_, durability_, plan_.path_overhead, need);
    plan_.path_spare = need.spare;
    plan_.path_classes = need.classes;
    plan_.path_bytes = need.bytes();
  }

  // ---- the result ----

  Plan finish() {
    add_reuse_dependencies(plan_.schedule);
    plan_.durability = durability_;
    plan_.ample = ample_ && !budget_.device;
    plan_.dram_peak = fixed() + plan_.arena;
    plan_.subspaces = subspaces_;
    plan_.update_workspace = workspace_;
    if (budget_.device) plan_.device_peak = budget_.device->work + plan_.device_arena;
    if (!plan_.regions.empty()) {
      plan_.node_peaks = bytes_by_node(plan_.regions, capacity_.size());
      plan_.node_peaks[0] += fixed();
    }
    keep_logits();
    plan_.resident = resident_bytes(plan_.schedule);
    const auto moved = traffic(plan_.schedule);
    plan_.read_per_step = moved.read;
    plan_.written_per_step = moved.written;
    plan_.to_device_per_step = moved.to_device;
    plan_.from_device_per_step = moved.from_device;
    plan_.prediction = simulate(plan_.schedule, description_, layout_, rates_, kSimulatedSteps, storage_name());
    if (redo_.gradients) count_durability();
    if (!rates_.near_paths.empty()) count_far();
    count_early();
    plan_.dram_classes = classes_of(plan_.schedule, plan_.arena);
    if (budget_.device) count_device();
    return std::move(plan_);
  }

  /// Of the head's three products in the second pass one is that of the first.
  void keep_logits() {
    const auto role = description_.tied_head ? state::BlockRole::embedding : state::BlockRole::head;
    const auto head = std::ranges::find(layout_.blocks(), role, &state::Block::role);
    if (!budget_.keeps_logits || budget_.device || head == layout_.blocks().end()) return;
    const bool several = !plan_.node_peaks.empty();
    const auto room = several ? capacity_[0] : budget_.dram;
    const auto peak = several ? plan_.node_peaks[0] : plan_.dram_peak;
    const Bytes slice = description_.tokens * head->slice_rows * state::field_bytes(description_.computes()).weight;
    plan_.kept_slices = std::min<std::uint64_t>(head->chunks, (room - std::min(room, peak)) / slice);
    plan_.kept_logits = plan_.kept_slices * slice;
    plan_.dram_peak += plan_.kept_logits;
    if (several) plan_.node_peaks[0] += plan_.kept_logits;
    plan_.ample = plan_.ample && plan_.kept_slices == head->chunks;
    const auto part = static_cast<double>(plan_.kept_slices) / static_cast<double>(head->chunks);
    rates_.head_gradient -= part * std::min(rates_.head_loss, rates_.head_gradient / 3);
  }

  void count_device() {
    const auto arithmetic = plan_.device_workspace.bytes();
    plan_.device_classes = classes_of(plan_.schedule, plan_.device_arena - arithmetic, Tier::device);
    plan_.device_classes["arithmetic"] = arithmetic;
  }

  /// What the same plan would write and take if its steps were not durable.
  void count_durability() {
    auto without = make_schedule(description_, layout_, plan_.residency, plan_.lookahead);
    static_cast<void>(lay_out(without));
    add_reuse_dependencies(without);
    plan_.durable_per_step = plan_.written_per_step - std::min(plan_.written_per_step, traffic(without).written);
    const auto seconds = simulate(without, description_, layout_, rates_, kSimulatedSteps, storage_name()).step_seconds;
    plan_.durable_seconds = std::max(0.0, plan_.prediction.step_seconds - seconds);
  }

  /// How much faster the same step were with near drives.
  void count_far() {
    auto near = rates_;
    near.paths = rates_.near_paths;
    const auto seconds = simulate(plan_.schedule, description_, layout_, near, kSimulatedSteps).step_seconds;
    plan_.far_seconds = std::max(0.0, plan_.prediction.step_seconds - seconds);
  }

  void count_early() {
    for (const auto& early : plan_.schedule.early) {
      if (early.task == kNone) continue;
      ++plan_.early_chunks;
      plan_.undo += plan_.schedule.buffers[early.undo].bytes;
    }
  }

  const Description& description_;
  const state::Layout& layout_;
  const Budget& budget_;
  Rates rates_;
  const Durability durability_;
  const Redo redo_;
  const state::UpdateRule rule_;
  const state::FieldBytes bytes_;
  const std::optional<UpdatedThere> there_;  ///< blocks that the device updates; none: as the budget says
  std::vector<Unit> units_;
  std::vector<std::size_t> free_;  ///< units the planner may keep, most traffic saved per byte first
  DeviceChoice device_{description_, layout_, budget_};
  Residency nothing_;  ///< the least that the host keeps beside what the device does
  const Bytes subspaces_ =
      subspace_bytes(layout_, std::max<std::size_t>(1, budget_.nodes.size()) + (budget_.device ? 1 : 0));
  const Bytes workspace_ = std::max<std::size_t>(1, budget_.nodes.size()) * update_workspace(rule_, layout_);
  Bytes room_ = 0;
  bool ample_ = true;                 ///< whatever was tried had room
  std::vector<Bytes> capacity_;       ///< by memory node
  std::vector<Dealing> dealings_;     ///< to several nodes, and
  const Dealing* dealing_ = nullptr;  ///< of these the one at work
  Plan plan_;
};

/// Empty when nothing learns in a subspace.
std::optional<InFull> plan_in_full(const Description& asked, const state::Layout& layout, const Budget& budget,
                                   const Rates& rates) {
  const auto inside = [](const state::Tensor& it) { return it.subspace.rank > 0; };
  if (std::ranges::none_of(layout.tensors(), inside)) return std::nullopt;
  const auto description = in_full(asked);
  const auto whole = description.layout();
  auto slower = rates;
  const auto longer = products_in_full(layout);
  slower.backward *= longer;
  slower.tail_backward *= longer;
  try {
    const auto plan = plan_alone(description, whole, budget, slower);
    return InFull{.fits = true,
                  .step_seconds = plan.prediction.step_seconds,
                  .hidden_seconds = plan_alone(description, whole, budget, rates).prediction.step_seconds,
                  .on_paths = plan.read_per_step + plan.written_per_step,
                  .on_link = plan.to_device_per_step + plan.from_device_per_step};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
    return InFull{};
  }
}

Plan plan_with(const Description& description, const state::Layout& layout, const Budget& budget, const Rates& rates,
               Durability durability) {
  const auto planner = [&](std::optional<UpdatedThere> there = {}) {
    return Planner(description, layout, budget, rates, durability, there);
  };
  if (!budget.device || budget.device->state) return planner().make();
  if (auto why = no_living(description, layout, rates); !why.empty()) {
    auto out = planner().make();
    out.living_why_not = std::move(why);
    return out;
  }
  const auto blocks = DeviceChoice(description, layout, budget).may_live();
  const auto& passing = budget.device->passing;
  const auto plan = [&](UpdatedThere there) {
    if (passing) there.passing = share_of(passing, blocks - there.living);
    return planner(there).make();
  };
  return choose_there(plan, planner().most_living(), passing ? std::nullopt : std::optional(blocks));
}

}  // namespace

Plan plan_alone(const Description& description, const state::Layout& layout, const Budget& budget, const Rates& alone) {
  auto rates = alone;  // of visits as they were measured: none of these learned projectors
  const auto longer = products_with_fits(description, layout);
  rates.backward *= longer;
  rates.tail_backward *= longer;
  const auto with = [&](Durability durability) { return plan_with(description, layout, budget, rates, durability); };
  if (!budget.durability && Planner(description, layout, budget, rates, Durability::none).spills()) {
    return with(Durability::step);  // without looking at the plan that is not durable
  }
  auto plan = with(budget.durability.value_or(Durability::none));
  if (!budget.durability && plan.path_bytes > 0) {
    const bool ample = plan.ample;
    plan = with(Durability::step);
    plan.ample = plan.ample && ample;
    return plan;
  }
  const auto all = [](const std::vector<bool>& flags) { return std::ranges::all_of(flags, std::identity{}); };
  const bool stays = all(plan.residency.weight) && all(plan.residency.state);
  return plan.durability == Durability::checkpoint && stays ? with(Durability::none) : std::move(plan);
}

Plan make_plan(const Description& description, const state::Layout& layout, const Budget& budget, const Rates& rates) {
  auto plan = plan_alone(description, layout, budget, rates);
  plan.in_full = plan_in_full(description, layout, budget, rates);
  return plan;
}

bool helps(const InFull& in_full, double step_seconds) noexcept {
  return !in_full.fits || step_seconds < (1 - InFull::kNoHelp) * in_full.hidden_seconds;
}

bool no_help(const Plan& plan) noexcept {
  return plan.in_full && !helps(*plan.in_full, plan.prediction.step_seconds);
}

}  // namespace spillway::plan
