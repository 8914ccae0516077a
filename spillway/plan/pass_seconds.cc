#include "spillway/plan/pass_seconds.h"

#include <algorithm>
#include <vector>

#include "spillway/plan/conversion.h"

namespace spillway::plan {
namespace {

/// Seconds in which a layer copies saved activations or features to their source buffer, or to another tier; backward
/// reads them there, too.
double copy_of(Operand what, const Schedule& schedule, const Pass& pass, const Rates& rates) {
  if (pass[what] == kNone) return 0;
  const auto& buffer = schedule.buffers[pass[what]];
  if (buffer.on_device() || (traits(pass.kind).phase == Phase::backward && buffer.node == 0)) return 0;
  auto rate = rates.copy;
  if (buffer.node > 0 && buffer.node < rates.nodes.size()) {
    const auto read = rates.nodes[buffer.node].read;
    if (read > 0) rate = rate > 0 ? std::min(rate, read) : read;
  }
  return seconds_at(buffer.bytes, rate);
}

/// Seconds for boundary activations and gradients that a pass reads or leaves on later tiers of host memory.
double seconds_aside(const Schedule& schedule, const Pass& pass, const Rates& rates) {
  double out = 0;
  for (const auto index : {pass[Operand::input], pass[Operand::output], pass[Operand::gradient]}) {
    if (index == kNone) continue;
    const auto& buffer = schedule.buffers[index];
    if (buffer.node > 0 && buffer.node < rates.nodes.size()) {
      out += seconds_at(buffer.bytes, rates.nodes[buffer.node].read);
    }
  }
  return out;
}

/// Seconds with all of it on the first tier.
double seconds_near(const Schedule& schedule, const state::Layout& layout, const Rates& rates, const Pass& it) {
  const auto& pass = traits(it.kind);
  if (!pass.of_layer) return pass.rates.seconds != nullptr ? rates.*pass.rates.seconds : 0;
  const auto size_of = [&](std::size_t block) { return static_cast<double>(layout.blocks()[block].elements); };
  const auto last = layout.layers().back();
  auto layers = layout.layers().size();
  double average = 0;
  for (const auto b : layout.layers()) average += size_of(b);
  if (rates.tail_forward > 0 && it.block == last) return rates.*pass.rates.last;
  if (rates.tail_forward > 0 && layers > 1) average -= size_of(last), --layers;
  average /= static_cast<double>(layers);
  const auto seconds = it.saved != Saved::recompute ? pass.rates.kept : pass.rates.seconds;
  return rates.*seconds * size_of(it.block) / average + copy_of(Operand::saved, schedule, it, rates);
}

/// Seconds of the first layer's passes beside those of a layer: images become features, and these are kept.
double entry_seconds(const Schedule& schedule, const state::Layout& layout, const Rates& rates, const Pass& it) {
  const auto& pass = traits(it.kind);
  if (!pass.of_layer || it.block != layout.layers().front()) return 0;
  return rates.*pass.rates.entry + copy_of(Operand::features, schedule, it, rates);
}

}  // namespace

double pass_seconds(const Schedule& schedule, const state::Layout& layout, const Rates& rates, Index pass) {
  const auto& it = schedule.passes[pass];
  return seconds_near(schedule, layout, rates, it) + seconds_aside(schedule, it, rates) +
         entry_seconds(schedule, layout, rates, it);
}

double weight_seconds(const Schedule& schedule, const Description& description, const state::Layout& layout,
                      const Rates& rates, Index pass) {
  const auto& it = schedule.passes[pass];
  const auto there = [&](const PassWeights& of) { return of.here != kNone && schedule.buffers[of.here].on_device(); };
  if (std::ranges::any_of(it.weights, there)) return 0;
  const auto chunks = chunks_of(layout, it);
  const auto element = state::field_bytes(description.weight_dtype).weight;
  std::vector<double> seconds(rates.nodes.size(), 0);
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    const auto node = schedule.node.empty() ? 0U : schedule.node[c];
    const bool stays = schedule.resident_weight[c] != kNone;
    if (!stays || node == 0 || node >= rates.nodes.size() || rates.nodes[node].read <= 0) continue;
    seconds[node] += static_cast<double>(layout.chunks()[c].elements * element) / rates.nodes[node].read;
  }
  const auto most = std::ranges::max_element(seconds);
  const auto reads =
      static_cast<double>(traits(it.kind).weight_reads) * static_cast<double>(description.count_own_micro_batches());
  const auto times = converts(description, layout, it) ? std::min(1.0, reads) : reads;  // else of a copy that is near
  return most == seconds.end() ? 0 : *most * times;
}

}  // namespace spillway::plan
