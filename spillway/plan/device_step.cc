#include "spillway/plan/device_step.h"

#include <algorithm>
#include <cmath>

namespace spillway::plan {
namespace {

constexpr unsigned kStepsPlayed = 4;
constexpr double kImages = 8;  ///< updates between two images of a resident chunk: kImagePeriod

/// All devices as one.
Hardware merged(const Hardware& hardware) {
  auto out = hardware;
  if (hardware.devices.empty()) return out;
  const auto n = static_cast<double>(hardware.devices.size());
  auto device = hardware.devices.front();
  if (hardware.devices.size() > 1) device.name = "devices";
  device.flops *= n;
  device.update *= n;
  device.to_device *= n;
  device.from_device *= n;
  out.devices = {device};
  return out;
}

class StepBuilder {
 public:
  StepBuilder(const Hardware& hardware, const ModelSizes& model, const DeviceWork& work,
              const DevicePlacement& placement)
      : hardware_(merged(hardware)),
        model_(model),
        work_(work),
        place_(placement),
        machine_(flow_, hardware_, hardware_.devices.size()),
        device_(!hardware_.devices.empty()),
        copies_(device_ && hardware_.devices.front().peer <= 0 ? placement.devices : 1) {
    for (auto* lane : {&compute_, &up_, &down_, &read_, &write_, &update_, &device_update_, &peer_, &fit_}) {
      *lane = flow_.add_lane();
    }
    layers_ = static_cast<std::size_t>(model.layers);
    fits_.assign(layers_, kNoLane);
  }

  DeviceStep play() {
    std::size_t first = 0;
    for (unsigned step = 0; step < kStepsPlayed; ++step) {
      first = flow_.tasks().size();
      std::ranges::fill(moved_, 0);
      add_step(step);
    }
    const auto result = flow_.play();
    DeviceStep out;
    out.seconds = result.tasks[ends_[kStepsPlayed - 1]].end - result.tasks[ends_[kStepsPlayed - 2]].end;
    for (auto t = first; t < flow_.tasks().size(); ++t) {
      for (const auto& use : flow_.tasks()[t].uses) {
        const auto& resource = flow_.resources()[use.resource];
        const auto rate = resource.shared > 0 ? resource.shared : resource.rate;
        out.alone[resource.name] += flow_.tasks()[t].work * use.amount / rate;
      }
    }
    out.read = moved_[0];
    out.written = moved_[1];
    out.up = moved_[2];
    out.down = moved_[3];
    return out;
  }

 private:
  using Id = std::uint32_t;
  using Ids = std::vector<Id>;

  Id add(double work, std::vector<FlowUse> uses, Id lane, std::size_t position, Ids needs) {
    return flow_.add(work, std::move(uses), lane, {step_, position}, std::move(needs));
  }
  Id read(double bytes, std::size_t position, Ids needs) {
    if (bytes <= 0) return join(std::move(needs));
    moved_[0] += bytes;
    return add(bytes, machine_.read(place_.drives), read_, position, std::move(needs));
  }
  Id write(double bytes, std::size_t position, Ids needs) {
    if (bytes <= 0) return join(std::move(needs));
    moved_[1] += bytes;
    return add(bytes, machine_.write(place_.drives), write_, position, std::move(needs));
  }
  Id up(double bytes, const Shares& nodes, std::size_t position, Ids needs) {
    if (bytes <= 0 || !device_) return join(std::move(needs));
    moved_[2] += bytes;
    return add(bytes, machine_.to_device(0, nodes), up_, position, std::move(needs));
  }
  Id down(double bytes, const Shares& nodes, std::size_t position, Ids needs) {
    if (bytes <= 0 || !device_) return join(std::move(needs));
    moved_[3] += bytes;
    return add(bytes, machine_.from_device(0, nodes), down_, position, std::move(needs));
  }
  /// Between the devices: what each lacks of `bytes`.
  Id gather(double bytes, std::size_t position, Ids needs) {
    if (!device_ || place_.devices < 2 || copies_ > 1) return join(std::move(needs));
    const auto part = bytes * (place_.devices - 1) / place_.devices;
    return add(part, machine_.peer(0), peer_, position, std::move(needs));
  }
  /// Nothing to do: one task, or none when there is one to wait for at most.
  Id join(Ids needs) {
    std::erase(needs, kNoLane);
    if (needs.empty()) return kNoLane;
    return needs.size() == 1 ? needs.front() : flow_.add({.work = 0, .needs = std::move(needs)});
  }

  // ---- a step ----

  void add_step(unsigned step) {
    step_ = step;
    gradients_.clear();
    borders_.assign(layers_, kNoLane);
    const auto table = model_.table;
    const auto embedding = update_of(table, 0);
    Id last = add(0, {}, compute_, 0, {embedding, end()});
    visited_.clear();
    for (std::size_t l = 0; l < layers_; ++l) last = forward(l, last);
    last = head(last, embedding);
    visited_.clear();
    for (std::size_t l = layers_; l-- > 0;) last = backward(l, last);
    embedding_gradient(last);
    gradients_.push_back(last);
    ends_.push_back(add(0, {}, kNoLane, positions(), gradients_));
  }

  [[nodiscard]] Id end() const { return ends_.empty() ? kNoLane : ends_.back(); }
  [[nodiscard]] std::size_t positions() const { return 2 * layers_ + 3; }
  [[nodiscard]] double off() const { return 1 - place_.device_state; }
  [[nodiscard]] double border() const {
    return work_.all_tokens() * model_.hidden * model_.weight * std::max(1.0, place_.devices);
  }
  [[nodiscard]] double devices() const { return std::max(1.0, place_.devices); }

  /// The update of so many elements, needed at a position; nothing in the first step. After a fit, if there is one.
  Id update_of(double elements, std::size_t position, Id fit = kNoLane) {
    if (end() == kNoLane) return kNoLane;
    Ids done;
    if (place_.device_state > 0) {
      done.push_back(add(place_.device_state * elements * model_.update_traffic(), machine_.device_update(0),
                         device_update_, position, {end(), fit}));
    }
    const auto pieces = static_cast<std::size_t>(std::ceil(elements * off() / kPiece));
    for (std::size_t p = 0; p < pieces; ++p)
      done.push_back(piece(off() * elements / static_cast<double>(pieces), position, fit));
    return join(done);
  }

  Id piece(double elements, std::size_t position, Id fit) {
    const auto state = place_.state_path;
    const auto in =
        elements *
        (state * (model_.state + std::min(1.0, place_.weight_path / std::max(state, 1e-9)) * model_.rewritten()) +
         place_.grad_path * model_.grad);
    // States may come while backward still runs; gradients that lie there are complete with the step.
    const auto ready = read(in, position, {place_.grad_path > 0 ? end() : kNoLane, before()});
    auto nodes = place_.state_nodes;
    for (std::size_t n = 0; n < nodes.size(); ++n) nodes[n] += state * (place_.staging_nodes[n] - nodes[n]);
    const auto done =
        add(elements * model_.update_traffic(), machine_.update(nodes), update_, position, {ready, end(), fit});
    auto image = state * model_.state + place_.weight_path * model_.rewritten();
    if (place_.durable) {
      const auto images = std::max(place_.weight_path, state);
      const auto resident = (1 - images) * (model_.rewritten() + model_.state) / kImages;
      image = images * model_.rewritten() + state * model_.state + resident;
    }
    pieces_.push_back(write(elements * image, position, {done}));
    return done;
  }

  /// Whose memory the next piece takes over: that of a piece that has been written.
  [[nodiscard]] Id before() const {
    const auto ahead = static_cast<std::size_t>(kPiecesInFlight);
    return pieces_.size() < ahead ? kNoLane : pieces_[pieces_.size() - ahead];
  }

  /// Who lets go of the memory that the weights of the next layer but one take.
  [[nodiscard]] Id window() const {
    const auto ahead = static_cast<std::size_t>(kWeightWindow);
    return visited_.size() < ahead ? end() : visited_[visited_.size() - ahead];
  }

  Id visit(double flops, std::size_t position, Ids needs) {
    return add(flops * devices(), machine_.compute(0), compute_, position, std::move(needs));
  }

  Id forward(std::size_t l, Id last) {
    const auto position = l + 1;
    const auto updated = update_of(model_.layer, position, fits_[l]);
    const auto bytes = model_.layer * model_.weight;
    const auto arrived = up(bytes * off() * copies_, place_.state_nodes, position, {updated, window()});
    const auto gathered = gather(bytes, position, {arrived, updated});
    const auto input = place_.relay && l > 0 ? up(border(), place_.border_nodes, position, {last}) : kNoLane;
    const auto done = visit(model_.layer_flops(work_), position, {last, gathered, arrived, updated, input});
    const auto kept = border() * (1 - place_.device_border);
    const auto left = down(place_.relay ? border() : kept, place_.border_nodes, 2 * layers_ - l, {done});
    borders_[l] = write(kept * place_.border_path, 2 * layers_ - l, {left});
    visited_.push_back(done);
    return done;
  }

  Id head(Id last, Id embedding) {
    const auto position = layers_ + 1;
    const auto updated = model_.tables > 1 ? update_of(model_.table, position) : embedding;
    const auto bytes = model_.table * model_.weight;
    for (const double times : {1.0, 3.0}) {  // the loss, then its gradient, each by slices
      const auto arrived = up(bytes * off() * copies_, place_.state_nodes, position, {updated});
      last = visit(times * model_.head_flops(work_), position,
                   {last, gather(bytes, position, {arrived, updated}), arrived});
    }
    gradient(model_.table, position, last);
    return last;
  }

  Id backward(std::size_t l, Id last) {
    const auto position = 2 * layers_ - l + 1;
    const auto bytes = model_.layer * model_.weight;
    const auto there = read(bytes * off() * place_.weight_path, position, {window()});
    const auto again = bytes * off() * (1 - place_.device_weight) * copies_;
    const auto arrived = up(again, place_.state_nodes, position, {there, window()});
    const auto gathered = gather(bytes, position, {arrived, there});
    const auto kept = border() * (1 - place_.device_border);
    const auto back = read(kept * place_.border_path, position, {borders_[l], window()});
    const auto input = up(kept, place_.border_nodes, position, {back, borders_[l], window()});
    const auto relayed = place_.relay ? up(border(), place_.border_nodes, position, {last}) : kNoLane;
    const auto done = visit(model_.backward_flops(work_), position, {last, gathered, arrived, there, input, relayed});
    if (place_.relay) down(border(), place_.border_nodes, position, {done});
    gradient(model_.layer, position, done);
    fits_[l] = fit(position, done);
    visited_.push_back(done);
    return done;
  }

  /// On its way out: to memory, and to a drive when it lies there or the step is durable.
  void gradient(double elements, std::size_t position, Id after) {
    const auto scattered = gather(elements * model_.grad, position, {after});
    const auto bytes = elements * model_.grad * off();
    const auto moved = down(bytes * copies_, place_.grad_nodes, position, {after, scattered});
    gradients_.push_back(moved);
    gradients_.push_back(write(bytes * (place_.durable ? 1 : place_.grad_path), positions(), {moved, after}));
  }

  /// Projectors of a layer, on the host: as often as they are learned on average.
  Id fit(std::size_t position, Id after) {
    const auto& fits = model_.fits;
    if (fits.traffic == 0) return kNoLane;
    const auto left = down(model_.layer * fits.bytes * copies_, place_.grad_nodes, position, {after});
    const auto uses = machine_.fit(place_.grad_nodes, fits.memory / fits.traffic);
    return add(model_.layer * fits.traffic, uses, fit_, position, {left});
  }

  /// A few rows, unless the head's gradient lies in the same table.
  void embedding_gradient(Id after) { gradients_.push_back(down(border(), place_.border_nodes, positions(), {after})); }

  const Hardware hardware_;
  const ModelSizes& model_;
  const DeviceWork& work_;
  const DevicePlacement& place_;
  Flow flow_;
  FlowMachine machine_;
  const bool device_;
  const double copies_;  ///< times that weights cross the links
  Id compute_ = 0, up_ = 0, down_ = 0, read_ = 0, write_ = 0, update_ = 0, device_update_ = 0, peer_ = 0, fit_ = 0;
  std::size_t layers_ = 0;
  std::uint64_t step_ = 0;
  Ids ends_, gradients_, borders_, visited_, pieces_;
  Ids fits_;  ///< by layer: what its next update waits for
  double moved_[4] = {};
};

}  // namespace

DeviceStep play_step(const Hardware& hardware, const ModelSizes& model, const DeviceWork& work,
                     const DevicePlacement& placement) {
  return StepBuilder(hardware, model, work, placement).play();
}

}  // namespace spillway::plan
