#include "tests/device/fake_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "spillway/kernels/moments.h"
#include "tests/device/cuda_on_host.h"
//
#include "spillway/device/cuda_kernels.cu"

namespace spillway::device::fake {
namespace {

using Ranges = std::vector<Range>;

/// Elements that a kernel reads.
Range source(const void* at, std::uint64_t count, std::size_t size) {
  return {.at = at, .bytes = at == nullptr ? 0 : count * size};
}

/// Elements that a kernel writes, and may read.
Range target(const void* at, std::uint64_t count, std::size_t size) {
  auto out = source(at, count, size);
  out.writes = true;
  return out;
}

Ranges ranges(const Sum& a) {
  return {source(a.values, a.n, traits(a.type).bytes), target(a.sum, a.n, 4)};
}

Ranges ranges(const Convert& a) {
  return {source(a.values, kernels::encoded_bytes(a.from, a.n), 1), target(a.out, a.n, traits(a.to).bytes)};
}

Ranges ranges(const Round& a) {
  return {source(a.sums, a.n, 4), source(a.sums == nullptr ? a.values : nullptr, a.n, traits(a.type).bytes),
          target(a.out, a.n, traits(a.type).bytes), target(a.squares, square_tiles(a.n), 8)};
}

Ranges ranges(const Squares& a) {
  return {source(a.parts, a.count, sizeof(Part)), target(a.squares, a.count, 8)};
}

Ranges ranges(const Gather& a) {
  return {source(a.rows, a.count, 8), target(a.out, a.count * a.columns, 4)};
}

Ranges ranges(const IndexSelect& a) {
  return {source(a.index, a.count, 4), target(a.out, a.count * a.columns, traits(a.type).bytes)};
}

/// The logits, which the second pass writes, and their labels.
Ranges ranges(const Logits& a, bool writes) {
  auto values = source(a.values, (a.tokens - 1) * a.stride + a.rows, traits(a.type).bytes);
  values.writes = writes;
  return {values, source(a.labels, a.tokens, 8)};
}

Ranges ranges(const LossStats& a) {
  auto out = ranges(a.logits, false);
  for (const auto* each : {a.maximum, a.sum, a.gold}) out.push_back(target(each, a.logits.tokens, 4));
  return out;
}

Ranges ranges(const LossGradient& a) {
  auto out = ranges(a.logits, true);
  for (const auto* each : {a.maximum, a.log_sum}) out.push_back(source(each, a.logits.tokens, 4));
  return out;
}

/// Values, and what scattered ones have beside them.
Ranges ranges(const kernels::Projector& r) {
  const auto values = r.nonzeros * r.stride();
  return {source(r.values, values, 4), source(r.places, r.is_scattered() ? values : 0, 4),
          source(r.by_column, r.by_column == nullptr ? 0 : column_index_size(r), 4)};
}

Ranges ranges(const Compress& a) {
  auto out = ranges(a.by);
  out.insert(out.end(), {source(a.in, a.tokens * a.in_stride, traits(a.type).bytes),
                         target(a.out, a.by.columns * a.out_stride, traits(a.type).bytes)});
  return out;
}

Ranges ranges(const Apply& a) {
  const auto &p = a.expansion.p, &q = a.expansion.q;
  auto out = ranges(p);
  const auto right = ranges(q);
  out.insert(out.end(), right.begin(), right.end());
  out.insert(out.end(), {target(a.weight, a.n, 2), target(a.remainder, a.remainder == nullptr ? 0 : a.n, 2),
                         source(a.expansion.delta, p.columns * q.columns, 4)});
  return out;
}

Ranges ranges(const Sample& a) {
  return {source(a.first, a.first_count, 8), source(a.second, a.second_count, 8), target(a.out, Sample::kFields, 8),
          target(a.copy, Sample::kFields, 8)};
}

/// `targets` are written, and `sources` read besides the values and the weight: [rows, columns] each.
Ranges ranges(const RmsNorm& a, std::initializer_list<const std::byte*> sources,
              std::initializer_list<std::byte*> targets) {
  const auto bytes = traits(a.type).bytes;
  Ranges out{source(a.values, a.rows * a.columns, bytes), source(a.weight, a.columns, bytes)};
  for (const auto* each : sources) out.push_back(source(each, a.rows * a.columns, bytes));
  for (const auto* each : targets) out.push_back(target(each, a.rows * a.columns, bytes));
  return out;
}

Ranges ranges(const RmsNormForward& a) {
  return ranges(a.norm, {a.addend}, {a.out, a.sum});
}

Ranges ranges(const RmsNormScales& a) {
  auto out = ranges(a.norm, {a.gradient}, {});
  out.push_back(target(a.scales, 2 * a.norm.rows, 4));
  return out;
}

Ranges ranges(const RmsNormBackward& a) {
  auto out = ranges(a.norm, {a.gradient, a.skip_gradient}, {a.out});
  out.push_back(source(a.scales, 2 * a.norm.rows, 4));
  out.push_back(target(a.sums, norm_tiles(a.norm.rows) * a.norm.columns, 4));
  return out;
}

Ranges ranges(const RmsNormWeight& a) {
  return {source(a.sums, a.tiles * a.columns, 4), target(a.out, a.columns, traits(a.type).bytes)};
}

Ranges ranges(const SwiGlu& a) {
  const auto bytes = traits(a.type).bytes;
  return {source(a.gate, a.n, bytes), source(a.up, a.n, bytes), target(a.out, a.n, bytes)};
}

Ranges ranges(const SwiGluBackward& a) {
  const auto bytes = traits(a.type).bytes;
  return {source(a.gate, a.n, bytes),        source(a.up, a.n, bytes),
          source(a.gradient, a.n, bytes),    target(a.gate_gradient, a.n, bytes),
          target(a.up_gradient, a.n, bytes), target(a.product, a.product == nullptr ? 0 : a.n, bytes)};
}

Ranges ranges(const Rotary& a) {
  if (a.sequences * a.heads * a.tokens == 0) return {};
  const auto extent = [&](const Rotary::Strides& by) {
    return (a.sequences - 1) * by.sequence + (a.heads - 1) * by.head + (a.tokens - 1) * by.token + 2 * a.half;
  };
  const auto bytes = traits(a.type).bytes;
  return {source(a.in, extent(a.in_strides), bytes), source(a.cosines, extent(a.table_strides), bytes),
          source(a.sines, extent(a.table_strides), bytes), target(a.out, extent(a.out_strides), bytes)};
}

void add_moments(const threads::UpdateArguments& a, Ranges& out) {
  const auto& kept = traits(a.form.moments);
  for (std::size_t m = 0; m < 2; ++m) {
    out.push_back(target(a.span.moments[m], a.span.n, kept.bytes));
    if (kept.is_scaled)
      out.push_back(target(a.span.scales[m], ceil_div(a.span.n, kernels::kQuantBlock), sizeof(float)));
  }
}

Ranges ranges(const threads::UpdateArguments& a) {
  const auto& type = traits(a.form.weights);
  Ranges out{target(a.span.weight, a.span.n, type.bytes), target(a.span.remainder, a.span.n, type.remainder),
             source(a.span.grad, a.span.n, type.bytes)};
  add_moments(a, out);
  return out;
}

Ranges ranges(const threads::DeltaArguments& a) {
  Ranges out{target(a.span.weight, a.span.n, sizeof(float)), source(a.span.grad, a.span.n, 2)};
  add_moments(a, out);
  return out;
}

template <class Arguments>
Kernel kernel(const char* name, void (*run)(Arguments)) {
  return {name, [run](const void* from) {
            std::array<std::byte, sizeof(Arguments)> bytes;
            std::memcpy(bytes.data(), from, bytes.size());
            const auto arguments = std::bit_cast<Arguments>(bytes);
            return Bound{ranges(arguments), [run, arguments](unsigned blocks) {
                           launch(blocks, threads::kBlock, [&] { run(arguments); });
                         }};
          }};
}

#define ONE(name) kernel("spillway_" #name, ::spillway_##name)
#define EACH_TYPE(name) ONE(name##_bf16), ONE(name##_fp16), ONE(name##_fp32)

const std::vector<Kernel>& all() {
  static const std::vector<Kernel> kAll{EACH_TYPE(sum),
                                        EACH_TYPE(convert),
                                        EACH_TYPE(round),
                                        EACH_TYPE(squares),
                                        EACH_TYPE(gather),
                                        EACH_TYPE(index_select),
                                        EACH_TYPE(loss_stats),
                                        EACH_TYPE(loss_gradient),
                                        EACH_TYPE(compress),
                                        EACH_TYPE(rms_norm),
                                        EACH_TYPE(rms_norm_scales),
                                        EACH_TYPE(rms_norm_backward),
                                        EACH_TYPE(rms_norm_weight),
                                        EACH_TYPE(swiglu),
                                        EACH_TYPE(swiglu_backward),
                                        EACH_TYPE(rotary),
                                        ONE(apply),
                                        ONE(apply_rounded),
                                        ONE(sample),
                                        EACH_TYPE(adamw_exact),
                                        EACH_TYPE(adamw_bf16),
                                        EACH_TYPE(adamw_int8),
                                        ONE(adamw_delta_exact),
                                        ONE(adamw_delta_bf16),
                                        ONE(adamw_delta_int8)};
  return kAll;
}

}  // namespace

const Kernel* find(const std::string& name) {
  const auto found = std::ranges::find(all(), name, &Kernel::name);
  return found == all().end() ? nullptr : &*found;
}

}  // namespace spillway::device::fake
