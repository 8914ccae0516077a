#include "tests/device/fake_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "tests/device/cuda_on_host.h"
//
#include "spillway/device/cuda_kernels.cu"

namespace spillway::device::fake {
namespace {

using Ranges = std::vector<Range>;

Range range(const void* at, std::uint64_t count, std::size_t size) {
  return {at, at == nullptr ? 0 : count * size};
}

Ranges ranges(const Sum& a) {
  return {range(a.values, a.n, traits(a.type).bytes), range(a.sum, a.n, 4)};
}

Ranges ranges(const Convert& a) {
  return {range(a.values, kernels::encoded_bytes(a.from, a.n), 1), range(a.out, a.n, traits(a.to).bytes)};
}

Ranges ranges(const Round& a) {
  return {range(a.sums, a.n, 4), range(a.sums == nullptr ? a.values : nullptr, a.n, traits(a.type).bytes),
          range(a.out, a.n, traits(a.type).bytes), range(a.squares, square_tiles(a.n), 8)};
}

Ranges ranges(const Squares& a) {
  return {range(a.parts, a.count, sizeof(Part)), range(a.squares, a.count, 8)};
}

Ranges ranges(const Gather& a) {
  return {range(a.rows, a.count, 8), range(a.out, a.count * a.columns, 4)};
}

Ranges ranges(const Logits& a, std::initializer_list<const float*> stats) {
  Ranges out{range(a.values, (a.tokens - 1) * a.stride + a.rows, traits(a.type).bytes), range(a.labels, a.tokens, 8)};
  for (const auto* each : stats) out.push_back(range(each, a.tokens, 4));
  return out;
}

Ranges ranges(const LossStats& a) {
  return ranges(a.logits, {a.maximum, a.sum, a.gold});
}

Ranges ranges(const LossGradient& a) {
  return ranges(a.logits, {a.maximum, a.log_sum});
}

Ranges ranges(const Compress& a) {
  const auto& r = a.by;
  return {range(r.values, r.nonzeros * r.stride(), 4), range(a.in, a.tokens * a.in_stride, traits(a.type).bytes),
          range(a.out, r.columns * a.out_stride, traits(a.type).bytes)};
}

Ranges ranges(const Apply& a) {
  const auto &p = a.expansion.p, &q = a.expansion.q;
  return {range(a.weight, a.n, 2), range(a.remainder, a.n, 2), range(p.values, p.nonzeros * p.stride(), 4),
          range(q.values, q.nonzeros * q.stride(), 4), range(a.expansion.delta, p.columns * q.columns, 4)};
}

Ranges ranges(const Sample& a) {
  return {range(a.first, a.first_count, 8), range(a.second, a.second_count, 8), range(a.out, Sample::kFields, 8),
          range(a.copy, Sample::kFields, 8)};
}

Ranges ranges(const threads::AdamWArguments& a) {
  const auto& it = a.update;
  return {range(it.weight, it.n, 2), range(it.remainder, it.n, 2), range(it.exp_avg, it.n, 4),
          range(it.exp_avg_sq, it.n, 4), range(it.grad, it.n, 2)};
}

Ranges ranges(const threads::AdamWDeltaArguments& a) {
  const auto& it = a.update;
  return {range(it.delta, it.n, 4), range(it.exp_avg, it.n, 4), range(it.exp_avg_sq, it.n, 4), range(it.grad, it.n, 2)};
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
                                        EACH_TYPE(loss_stats),
                                        EACH_TYPE(loss_gradient),
                                        EACH_TYPE(compress),
                                        ONE(apply),
                                        ONE(sample),
                                        ONE(adamw),
                                        ONE(adamw_delta)};
  return kAll;
}

}  // namespace

const Kernel* find(const std::string& name) {
  const auto found = std::ranges::find(all(), name, &Kernel::name);
  return found == all().end() ? nullptr : &*found;
}

}  // namespace spillway::device::fake
