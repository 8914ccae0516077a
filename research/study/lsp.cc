#include "research/study/lsp.h"

#include <algorithm>

namespace spillway::study {
namespace {

constexpr double kLspHalf = 2, kLspSingle = 4;  ///< bytes of a number
constexpr double kLspTraffic = 26;  ///< bytes that a host's update moves for an element, as a profile's rates are
constexpr unsigned kLspSteps = 4;

/// One matrix: operations on the device and bytes moved in its memory.
struct Costs {
  double product = 0;  ///< operations of one product with the tokens
  double compress = 0, compress_bytes = 0;
  double apply = 0, apply_bytes = 0;
  double numbers = 0;  ///< that leave the device, and come back
};

Costs costs_of(const LspMatrix& it, const LspWork& work, LspMethod method) {
  const double m = it.rows, n = it.columns, d = work.rank, tokens = work.tokens;
  Costs out{.product = 2 * m * n * tokens};
  if (method == LspMethod::adapters) return out;
  if (!it.trained || d == 0 || method == LspMethod::resident || method == LspMethod::zero) {
    out.compress = out.product;  // the weight's gradient
    if (it.trained) out.numbers = m * n;
    if (it.trained && method != LspMethod::resident) out.apply_bytes = (kLspSingle + 4 * kLspHalf) * m * n;
    return out;
  }
  out.numbers = d * d;
  out.compress = 2 * d * d * tokens;
  // Projectors are written out as dense matrices, once for compressing and once for coming back.
  out.compress += 2 * d * (m + n) * tokens;
  out.compress_bytes = kLspHalf * d * (m + n);
  out.apply = 2 * d * d * std::min(m, n) + 2 * d * m * n;
  out.apply_bytes = kLspHalf * d * (m + n) + 4 * kLspHalf * m * n;
  return out;
}

/// Its result, the gradient of its input, and that of its weight where anything but adapters trains.
double head_operations(const LspModel& model, const LspWork& work, LspMethod method) {
  return (method == LspMethod::adapters ? 2 : 3) * 2 * model.table * work.tokens;
}

class LspPlay {
 public:
  using Id = std::uint32_t;
  using Ids = std::vector<Id>;

  LspPlay(const Hardware& hardware, const LspModel& model, const LspWork& work, LspMethod method,
          const LspDelays& delays)
      : model_(model),
        work_(work),
        method_(method),
        delays_(delays),
        machine_(flow_, hardware, 1),
        node_(all_at(0, hardware.nodes.size())) {
    for (auto* lane : {&compute_, &down_, &update_, &up_}) *lane = flow_.add_lane();
    for (const auto& matrix : model.matrices) {
      for (unsigned i = 0; i < matrix.count; ++i) layer_.push_back(costs_of(matrix, work, method));
    }
    ready_.resize(model.layers * layer_.size());
  }

  LspStep play() {
    for (unsigned step = 0; step < kLspSteps; ++step) {
      step_ = step;
      if (step + 1 == kLspSteps) out_ = {};
      forward();
      backward();
    }
    const auto played = flow_.play();
    out_.seconds = played.tasks[ends_[kLspSteps - 1]].end - played.tasks[ends_[kLspSteps - 2]].end;
    return out_;
  }

 private:
  [[nodiscard]] const Costs& costs(std::size_t matrix) const { return layer_[matrix % layer_.size()]; }
  [[nodiscard]] bool blocks() const { return method_ == LspMethod::published || method_ == LspMethod::zero; }

  Id add(double work, std::vector<FlowUse> uses, Id lane, std::size_t position, Ids needs) {
    return flow_.add(work, std::move(uses), lane, {step_, position}, std::move(needs));
  }

  /// On the device, after all that it was given before.
  Id pass(double operations, double bytes, Ids needs) {
    out_.operations += operations;
    needs.push_back(last_);
    last_ = add(operations, machine_.compute(0), compute_, order_++, std::move(needs));
    if (bytes > 0) last_ = add(bytes, machine_.device_update(0), compute_, order_++, {last_});
    return last_;
  }

  Id down(std::size_t matrix, Id after) {
    const auto bytes = kLspSingle * costs(matrix).numbers;
    out_.down += bytes;
    return add(bytes, machine_.from_device(0, node_), down_, order_++, {after});
  }

  /// The host's part, and the deltas that come back. What waits is served in the order in which it came.
  Id processed(std::size_t matrix, Id after) {
    return add(kLspTraffic * costs(matrix).numbers, machine_.update(node_), update_, order_++, {after});
  }
  Id up(std::size_t matrix, Id after) {
    const auto bytes = kLspSingle * costs(matrix).numbers;
    out_.up += bytes;
    return add(bytes, machine_.to_device(0, node_), up_, order_++, {after});
  }
  void apply(std::size_t matrix, Id arrived) { pass(costs(matrix).apply, costs(matrix).apply_bytes, {arrived}); }

  void forward() {
    if (method_ == LspMethod::zero && step_ > 0) update_all();
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      if (method_ == LspMethod::published && step_ > 0 && i < delays_.late && costs(i).numbers > 0) {
        apply(i, up(i, processed(i, down(i, last_))));
      }
      pass(costs(i).product, 0, {});
    }
  }

  /// Everything between two passes.
  void update_all() {
    // The host takes the matrices in the order of the forward pass: the gradient that left last comes first.
    const auto end = add(0, {}, kNoLane, 0, {last_, ready_.front()});
    Ids arrived(ready_.size(), kNoLane);
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      if (costs(i).numbers > 0) arrived[i] = up(i, processed(i, end));
    }
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      if (costs(i).numbers > 0) apply(i, arrived[i]);
    }
  }

  void backward() {
    pass(head_operations(model_, work_, method_), 0, {});
    Ids processed_after;  // by pass, in the order of the pass
    std::vector<std::pair<std::size_t, Id>> to_apply;
    for (std::size_t i = ready_.size(); i-- > 0;) {
      if ((i + 1) % layer_.size() == 0) {
        for (const auto& it : layer_) pass(it.product, 0, {});  // once more, from the layer's input
      }
      const auto place = processed_after.size();
      const auto waits = blocks() && place > delays_.process ? processed_after[place - delays_.process - 1] : kNoLane;
      pass(costs(i).product + costs(i).compress, costs(i).compress_bytes, {waits});
      processed_after.push_back(kNoLane);
      if (costs(i).numbers > 0) leave(i, processed_after, to_apply);
      if (to_apply.size() > delays_.apply) {
        apply(to_apply.front().first, to_apply.front().second);
        to_apply.erase(to_apply.begin());
      }
    }
    for (const auto& [i, arrived] : to_apply) apply(i, arrived);
    ends_.push_back(add(0, {}, kNoLane, order_, {last_}));
  }

  void leave(std::size_t i, Ids& processed_after, std::vector<std::pair<std::size_t, Id>>& to_apply) {
    switch (method_) {
      case LspMethod::resident:
      case LspMethod::adapters:
        return;
      case LspMethod::zero:
        ready_[i] = down(i, last_);
        return;
      case LspMethod::published: {
        if (i < delays_.late) return;
        processed_after.back() = processed(i, down(i, last_));
        to_apply.emplace_back(i, up(i, processed_after.back()));
        return;
      }
    }
  }

  const LspModel& model_;
  const LspWork& work_;
  const LspMethod method_;
  const LspDelays delays_;
  Flow flow_;
  FlowMachine machine_;
  const Shares node_;
  std::vector<Costs> layer_;
  Ids ready_;  ///< by matrix: the gradient on the host, which the update between two passes waits for
  Ids ends_;
  LspStep out_;
  Id compute_ = 0, down_ = 0, update_ = 0, up_ = 0, last_ = kNoLane;
  std::uint64_t step_ = 0, order_ = 0;
};

}  // namespace

LspStep lsp_step(const Hardware& hardware, const LspModel& model, const LspWork& work, LspMethod method,
                 const LspDelays& delays) {
  return LspPlay(hardware, model, work, method, delays).play();
}

}  // namespace spillway::study
