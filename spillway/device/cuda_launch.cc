#include "spillway/device/cuda_launch.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/device/cuda_update_threads.h"
#include "spillway/device/fused_threads.h"
#include "spillway/kernels/moments.h"

namespace spillway::device {
namespace {

/// Enough to fill any GPU; threads take several elements each where there are more.
constexpr std::uint64_t kMostBlocks = 4096;
constexpr std::uint64_t kWarpsOfBlock = threads::kBlock / threads::kWarp;

const char* suffix(Element type) {
  switch (type) {
    case Element::bf16:
      return "_bf16";
    case Element::fp16:
      return "_fp16";
    case Element::fp32:
      break;
  }
  return "_fp32";
}

template <class Arguments>
Launch launch(std::string kernel, std::uint64_t blocks, const Arguments& arguments) {
  static_assert(std::is_trivially_copyable_v<Arguments> && sizeof(Arguments) <= sizeof(Launch::arguments));
  if (blocks == 0) return {};
  Launch out{.kernel = std::move(kernel), .blocks = static_cast<unsigned>(std::min<std::uint64_t>(blocks, 1U << 30))};
  std::memcpy(out.arguments.data(), &arguments, sizeof arguments);
  return out;
}

std::uint64_t blocks_of(std::uint64_t elements) {
  return std::min(kMostBlocks, (elements + threads::kBlock - 1) / threads::kBlock);
}
std::uint64_t blocks_of_warps(std::uint64_t warps) {
  return (warps + kWarpsOfBlock - 1) / kWarpsOfBlock;
}
/// A thread takes one group, so that loads of all that a GPU holds are in flight.
std::uint64_t blocks_of_groups(std::uint64_t groups) {
  return (groups + threads::kBlock - 1) / threads::kBlock;
}

std::string name(const char* what, Element type) {
  return text("spillway_", what, suffix(type));
}

Launch of(const Sum& it) {
  return launch(name("sum", it.type), blocks_of_groups(threads::groups_of(it.n)), it);
}
Launch of(const Convert& it) {
  return launch(name("convert", it.to), blocks_of(it.n), it);
}
Launch of(const Round& it) {
  return launch(name("round", it.type), square_tiles(it.n), it);
}
Launch of(const Squares& it) {
  return launch(name("squares", it.type), it.count, it);
}
Launch of(const Gather& it) {
  return launch(name("gather", it.type), blocks_of(it.count * it.columns), it);
}
Launch of(const IndexSelect& it) {
  return launch(name("index_select", it.type), blocks_of_groups(it.count * threads::groups_of(it.columns)), it);
}
Launch of(const LossStats& it) {
  return launch(name("loss_stats", it.logits.type), blocks_of_warps(it.logits.tokens), it);
}
Launch of(const LossGradient& it) {
  return launch(name("loss_gradient", it.logits.type),
                blocks_of_groups(it.logits.tokens * threads::groups_of(it.logits.rows)), it);
}
Launch of(const Compress& it) {
  return launch(name("compress", it.type), blocks_of(it.by.columns * it.tokens), it);
}
Launch of(const RmsNormForward& it) {
  return launch(name("rms_norm", it.norm.type), blocks_of_warps(it.norm.rows), it);
}
Launch of(const RmsNormScales& it) {
  return launch(name("rms_norm_scales", it.norm.type), blocks_of_warps(it.norm.rows), it);
}
Launch of(const RmsNormBackward& it) {
  return launch(name("rms_norm_backward", it.norm.type),
                blocks_of_groups(norm_tiles(it.norm.rows) * threads::groups_of(it.norm.columns)), it);
}
Launch of(const RmsNormWeight& it) {
  return launch(name("rms_norm_weight", it.type), blocks_of_warps(it.columns), it);
}
Launch of(const SwiGlu& it) {
  return launch(name("swiglu", it.type), blocks_of_groups(threads::groups_of(it.n)), it);
}
Launch of(const SwiGluBackward& it) {
  return launch(name("swiglu_backward", it.type), blocks_of_groups(threads::groups_of(it.n)), it);
}
Launch of(const Rotary& it) {
  return launch(name("rotary", it.type),
                blocks_of_groups(threads::groups_of(it.half) * it.heads * it.tokens * it.sequences), it);
}
Launch of(const Apply& it) {
  if (it.remainder != nullptr) return launch("spillway_apply", blocks_of(it.n), it);
  const auto& by = it.expansion;
  const auto blocks = blocks_of(it.n / kernels::kRandomBlock<std::uint16_t> + 2);
  return launch("spillway_apply_rounded", blocks, threads::RoundedApply{it, {by.seed, by.step}});
}
Launch of(const Sample& it) {
  return launch("spillway_sample", 1, it);
}

threads::UpdateArguments arguments_of(const kernels::UpdateForm& form, const kernels::UpdateSpan& span,
                                      const kernels::UpdateStep& step) {
  if (step.optimizer != kernels::AdamW::kOptimizer) {
    throw Error(ErrorCode::internal, "of the optimizers only adamw has kernels for a GPU");
  }
  return {form, span, {step, form.moments}, {step.seed, step.step}};
}

/// A warp takes a block of codes, or as many elements.
std::uint64_t blocks_of_updates(std::uint64_t elements) {
  return std::min(kMostBlocks, blocks_of_warps((elements + kernels::kQuantBlock - 1) / kernels::kQuantBlock));
}

/// "adamw_int8", "adamw_delta_exact".
std::string update_name(const char* what, kernels::Moments moments) {
  return text(what, "_", name_of(moments));
}

Launch of(const Update& it) {
  return launch(name(update_name("adamw", it.form.moments).c_str(), it.form.weights), blocks_of_updates(it.span.n),
                arguments_of(it.form, it.span, it.step));
}
Launch of(const UpdateDelta& it) {
  return launch(text("spillway_", update_name("adamw_delta", it.moments)), blocks_of_updates(it.span.n),
                threads::DeltaArguments{arguments_of({kernels::Weights::fp32, it.moments}, it.span, it.step)});
}

}  // namespace

Launch launch_of(const Work& work) {
  return std::visit([](const auto& it) { return of(it); }, work);
}

std::span<const std::string> kernel_names() {
  static const auto kNames = [] {
    std::vector<std::string> out{"spillway_apply",
                                 "spillway_apply_rounded",
                                 "spillway_sample",
                                 "spillway_adamw_delta_exact",
                                 "spillway_adamw_delta_bf16",
                                 "spillway_adamw_delta_int8"};
    for (const auto* what :
         {"sum", "convert", "round", "squares", "gather", "index_select", "loss_stats", "loss_gradient", "compress",
          "adamw_exact", "adamw_bf16", "adamw_int8", "rms_norm", "rms_norm_scales", "rms_norm_backward",
          "rms_norm_weight", "swiglu", "swiglu_backward", "rotary"}) {
      for (const auto type : {Element::bf16, Element::fp16, Element::fp32}) out.push_back(name(what, type));
    }
    return out;
  }();
  return kNames;
}

}  // namespace spillway::device
