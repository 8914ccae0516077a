#include "spillway/plan/device_placement.h"

#include <algorithm>
#include <numeric>

#include "spillway/base/error.h"

namespace spillway::plan {
namespace {

constexpr double kTiny = 1;  ///< bytes that rounding may leave

/// Free places below the third, so that nothing is written over before it is durable.
constexpr double kSpare = 0.1;

class Placer {
 public:
  Placer(const Hardware& hardware, const ModelSizes& model, const DeviceWork& work, const DeviceBudget& budget)
      : hardware_(hardware), model_(model), work_(work), budget_(budget) {
    out_.devices = static_cast<double>(hardware.devices.size());
    out_.node_bytes.resize(hardware.nodes.size());
    std::vector<double> dram_rates;
    for (const auto& node : hardware.nodes) dram_rates.push_back(node.cxl ? 0 : node.update);
    out_.staging_nodes = in_proportion(dram_rates);
    out_.drive_bytes.resize(hardware.drives.size());
    const auto dram = static_cast<double>(hardware.memory(false));
    // The budget cuts every DRAM node alike.
    const auto bound = static_cast<double>(budget.dram > 0 ? budget.dram : hardware.dram_available);
    const auto cut = dram > 0 ? std::min(1.0, bound / dram) : 0;
    for (const auto& node : hardware.nodes) {
      free_.push_back(static_cast<double>(node.capacity) * (node.cxl ? 1 : cut));
    }
  }

  DevicePlacement make(Preference preference, double on_device) {
    if (!hardware_.devices.empty()) place_on_device(on_device);
    const auto untouched = free_;
    place_on_host(preference, false);
    if (out_.on_paths()) {  // again, with room for what passes through
      free_ = untouched;
      for (auto& node : out_.node_bytes) node.clear();
      place_on_host(preference, true);
      place_on_drives();
    }
    return std::move(out_);
  }

 private:
  // ---- device ----

  void place_on_device(double wish) {
    const auto there =
        static_cast<double>(budget_.device > 0 ? std::min(budget_.device, hardware_.devices.front().memory)
                                               : hardware_.devices.front().memory);
    out_.device_bytes = device_memory(model_, work_);
    const auto reserved = static_cast<double>(hardware_.devices.front().reserved);
    if (reserved > 0) out_.device_bytes["context and libraries"] = reserved;
    auto room = there - sum_of(out_.device_bytes);
    if (room < 0) refuse_device(there);
    const auto take = [&](const char* name, double bytes) {
      out_.device_bytes[name] += bytes;
      room -= bytes;
    };
    // All micro-batches' borders and gradients of the layer that is visited.
    const auto ring = 3 * border() * static_cast<double>(work_.micro_batches - 1);
    out_.relay = ring > room;
    if (!out_.relay && ring > 0) take("activations in flight", ring);
    const auto share = [&](double bytes) { return bytes > 0 ? std::clamp(room / bytes, 0.0, 1.0) : 0; };
    const auto all = model_.elements() * (model_.weight + model_.state + model_.grad) / out_.devices;
    const bool can_update = hardware_.devices.front().update > 0;
    out_.device_state = can_update ? std::min(wish, share(all)) : 0;
    if (out_.device_state > 0) {
      const auto part = out_.device_state * model_.elements() / out_.devices;
      take("weight", part * model_.weight);
      take("state", part * model_.state);
      take("grad", part * model_.grad);
    }
    const auto borders = model_.layers * border() * static_cast<double>(work_.micro_batches);
    out_.device_border = share(borders);
    if (out_.device_border > 0) take("activation", out_.device_border * borders);
    const auto weights = (1 - out_.device_state) * model_.elements() * model_.weight / out_.devices;
    out_.device_weight = share(weights);
    if (out_.device_weight > 0) take("weight", out_.device_weight * weights);
  }

  [[noreturn]] void refuse_device(double there) const {
    const auto asked = sum_of(out_.device_bytes);
    auto message = text("does not fit on ", hardware_.devices.front().name, ": the smallest plan needs ",
                        human(static_cast<Bytes>(asked)), " (");
    const char* comma = "";
    for (const auto& [name, bytes] : out_.device_bytes) {
      message += text(comma, name, " ", human(static_cast<Bytes>(bytes)));
      comma = ", ";
    }
    message += text("), and there are ", human(static_cast<Bytes>(there)), ". ");
    const auto tokens = out_.device_bytes.at("working set") + out_.device_bytes.at("activations in flight");
    const auto most = work_.tokens() * (there - (asked - tokens)) / tokens;
    message += most >= 1
                   ? text("It would fit with ", static_cast<Bytes>(most),
                          " tokens in a micro-batch (a smaller max_length or per_device_train_batch_size), or with ")
                   : text("No sequence would fit; it would with ");
    const auto bytes = static_cast<Bytes>(asked);
    const bool budget = bytes <= hardware_.devices.front().memory;
    throw Error(ErrorCode::does_not_fit, message + (budget ? text("--gpu_memory ", ceil_div(bytes, MiB), "MiB")
                                                           : text("GPUs of ", human(bytes))));
  }

  [[nodiscard]] double border() const { return work_.tokens() * model_.hidden * model_.weight; }

  // ---- host ----

  void place_on_host(Preference preference, bool paths) {
    fixed_ = fixed(paths);
    for (const auto& [name, bytes] : fixed_) {
      const auto shares = fill(bytes, name.c_str(), true);
      if (std::accumulate(shares.begin(), shares.end(), 0.0) < bytes - kTiny)
        refuse_host(sum_of(fixed(!hardware_.drives.empty())));
    }
    const auto off = (1 - out_.device_state) * model_.elements();
    const auto borders = (1 - out_.device_border) * model_.layers * border() *
                         static_cast<double>(work_.micro_batches) * std::max(1.0, out_.devices);
    out_.weight_path = rest(deal(off * model_.weight, "weight"), off * model_.weight);
    const auto place_borders = [&] {
      const auto there = fill(borders, "activation", true);
      out_.border_nodes = or_staging(there);
      out_.border_path = rest(there, borders);
    };
    if (preference == Preference::activations) place_borders();
    const auto states = deal(off * model_.state, "state");
    out_.state_nodes = or_staging(states);
    out_.state_path = rest(states, off * model_.state);
    if (preference == Preference::states) place_borders();
    const auto grads = fill(off * model_.grad, "grad", true);
    out_.grad_nodes = or_staging(grads);
    out_.grad_path = rest(grads, off * model_.grad);
    const auto asked = sum_of(fixed_) + off * (model_.weight + model_.state + model_.grad) + borders;
    if (out_.on_paths() && hardware_.drives.empty()) refuse_host(asked);
  }

  /// Where nothing stays, what there is passes through.
  [[nodiscard]] Shares or_staging(const Shares& taken) const {
    return std::accumulate(taken.begin(), taken.end(), 0.0) > 0 ? in_proportion(taken) : out_.staging_nodes;
  }

  [[nodiscard]] ByClass fixed(bool paths) const {
    return hardware_.devices.empty() ? host_only_memory(model_, work_, paths)
                                     : host_memory(model_, work_, out_.devices, paths);
  }

  [[nodiscard]] static double rest(const Shares& taken, double bytes) {
    const auto left = bytes - std::accumulate(taken.begin(), taken.end(), 0.0);
    return bytes > 0 && left > kTiny ? left / bytes : 0;
  }

  /// Bytes by node: the kind asked for first, evenly by what is free there.
  Shares fill(double bytes, const char* name, bool dram) {
    Shares taken(free_.size(), 0);
    double left = bytes;
    for (const bool cxl : {!dram, dram}) {
      double room = 0;
      for (std::size_t n = 0; n < free_.size(); ++n) room += hardware_.nodes[n].cxl == cxl ? free_[n] : 0;
      const auto part = room > 0 ? std::min(1.0, left / room) : 0;
      for (std::size_t n = 0; n < free_.size(); ++n) {
        if (hardware_.nodes[n].cxl == cxl) take(n, part * free_[n], name, taken);
      }
      left -= part * room;
    }
    return taken;
  }

  /// Bytes by node in proportion to update bandwidth; a full node's part goes to the others.
  Shares deal(double bytes, const char* name) {
    Shares taken(free_.size(), 0);
    for (double left = bytes; left > kTiny;) {
      double rates = 0;
      for (std::size_t n = 0; n < free_.size(); ++n) rates += free_[n] > kTiny ? hardware_.nodes[n].update : 0;
      if (rates <= 0) break;
      const auto whole = left;
      for (std::size_t n = 0; n < free_.size(); ++n) {
        if (free_[n] <= kTiny) continue;
        const auto part = std::min(free_[n], whole * hardware_.nodes[n].update / rates);
        take(n, part, name, taken);
        left -= part;
      }
    }
    return taken;
  }

  void take(std::size_t node, double bytes, const char* name, Shares& taken) {
    if (bytes <= 0) return;
    free_[node] -= bytes;
    taken[node] += bytes;
    out_.node_bytes[node][name] += bytes;
  }

  [[noreturn]] void refuse_host(double asked) const {
    const auto there = static_cast<double>(budget_.dram > 0 ? budget_.dram : hardware_.dram_available) +
                       static_cast<double>(hardware_.memory(true));
    auto message =
        text("does not fit in host memory: this step needs ", human(static_cast<Bytes>(asked)), ", and there are ",
             human(static_cast<Bytes>(there)), " on ", hardware_.nodes.size(), " memory nodes");
    if (hardware_.drives.empty()) {
      message += text(" and no storage path. It would fit with a path in the profile, or");
    } else {
      message += text(" for what has to be there while the rest lies on paths. It would fit");
    }
    const auto cards = hardware_.memory(true);
    const auto dram = static_cast<Bytes>(asked) - std::min(static_cast<Bytes>(asked), cards);
    message += dram <= hardware_.memory(false) ? text(" with --dram_budget ", ceil_div(dram, MiB), "MiB")
                                               : text(" with ", human(dram), " of DRAM");
    message += ", or with a smaller max_length or per_device_train_batch_size";
    throw Error(ErrorCode::does_not_fit, message);
  }

  // ---- drives ----

  void place_on_drives() {
    const auto wish = budget_.durability.value_or(Durability::step);
    out_.durable = wish == Durability::step;
    const auto off = (1 - out_.device_state) * model_.elements();
    const auto borders = (1 - out_.device_border) * model_.layers * border() *
                         static_cast<double>(work_.micro_batches) * std::max(1.0, out_.devices);
    // A chunk whose state lies on a path has its weight there, too: an image is one.
    const auto images = std::max(out_.weight_path, out_.state_path);
    ByClass all{{"weight", off * model_.weight * (out_.durable ? images : out_.weight_path)},
                {"state", off * model_.state * out_.state_path},
                {"grad", off * model_.grad * out_.grad_path},
                {"activation", borders * out_.border_path}};
    if (out_.durable) {  // two slots of gradients, an image of what is resident, places to write to
      all["durability"] = off * model_.grad * (2 - out_.grad_path) +
                          off * (model_.weight + model_.state) * (1 - images) +
                          kSpare * off * (model_.rewritten() + model_.state);
    }
    deal_to_drives(all);
  }

  void deal_to_drives(const ByClass& all) {
    const auto bytes = sum_of(all);
    std::vector<double> room, rates;
    for (const auto& drive : hardware_.drives) {
      room.push_back(drive.capacity > 0 ? static_cast<double>(drive.capacity) : bytes);
      rates.push_back(mixed_rate(drive));
    }
    if (const auto sum = std::accumulate(room.begin(), room.end(), 0.0); sum < bytes) {
      const auto without = out_.durable ? bytes - all.at("durability") : bytes;
      throw Error(ErrorCode::does_not_fit,
                  text("does not fit on the storage paths: this step needs ", human(static_cast<Bytes>(bytes)),
                       ", and they hold ", human(static_cast<Bytes>(sum)), ". It would fit with ",
                       human(static_cast<Bytes>(bytes - sum)), " more on paths",
                       without <= sum ? ", or with --durability none" : "",
                       "; state_format bf16 or int8 and more memory make it less"));
    }
    out_.drives.assign(room.size(), 0);
    for (double left = 1; left > 1e-9;) {
      double open = 0;
      for (std::size_t d = 0; d < room.size(); ++d) open += room[d] > kTiny ? rates[d] : 0;
      const auto whole = left;
      for (std::size_t d = 0; d < room.size() && open > 0; ++d) {
        if (room[d] <= kTiny) continue;
        const auto part = std::min(whole * rates[d] / open, room[d] / std::max(1.0, bytes));
        out_.drives[d] += part;
        room[d] -= part * bytes;
        left -= part;
      }
      if (open <= 0) break;
    }
    for (std::size_t d = 0; d < room.size(); ++d) {
      for (const auto& [name, amount] : all) {
        if (amount > kTiny) out_.drive_bytes[d][name] = amount * out_.drives[d];
      }
    }
  }

  const Hardware& hardware_;
  const ModelSizes& model_;
  const DeviceWork& work_;
  const DeviceBudget& budget_;
  std::vector<double> free_;  ///< by node
  ByClass fixed_;
  DevicePlacement out_;
};

}  // namespace

DevicePlacement place(const Hardware& hardware, const ModelSizes& model, const DeviceWork& work,
                      const DeviceBudget& budget, Preference preference, double on_device) {
  return Placer(hardware, model, work, budget).make(preference, on_device);
}

}  // namespace spillway::plan
