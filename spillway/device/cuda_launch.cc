#include "spillway/device/cuda_launch.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "spillway/base/error.h"

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

std::string name(const char* what, Element type) {
  return text("spillway_", what, suffix(type));
}

Launch of(const Sum& it) {
  return launch(name("sum", it.type), blocks_of(it.n), it);
}
Launch of(const Convert& it) {
  return launch(name("convert", it.to), blocks_of(it.n), it);
}
Launch of(const Round& it) {
  return launch(name("round", it.type), blocks_of_warps(square_tiles(it.n)), it);
}
Launch of(const Squares& it) {
  return launch(name("squares", it.type), blocks_of_warps(it.count), it);
}
Launch of(const Gather& it) {
  return launch(name("gather", it.type), blocks_of(it.count * it.columns), it);
}
Launch of(const LossStats& it) {
  return launch(name("loss_stats", it.logits.type), blocks_of_warps(it.logits.tokens), it);
}
Launch of(const LossGradient& it) {
  return launch(name("loss_gradient", it.logits.type), it.logits.tokens, it);
}
Launch of(const Compress& it) {
  return launch(name("compress", it.type), blocks_of(it.by.columns * it.tokens), it);
}
Launch of(const Apply& it) {
  return launch("spillway_apply", blocks_of(it.n), it);
}
Launch of(const Sample& it) {
  return launch("spillway_sample", 1, it);
}

/// The constants of a step, of the one optimizer that a GPU has kernels for.
kernels::AdamW formula_of(const kernels::UpdateStep& step) {
  if (step.optimizer != kernels::AdamW::kOptimizer) {
    throw Error(ErrorCode::internal, "of the optimizers only adamw has a kernel for a GPU");
  }
  return {step, kernels::Moments::exact};
}

Launch of(const AdamWUpdate& it) {
  return launch("spillway_adamw", blocks_of(it.n), threads::AdamWArguments{it, formula_of(it.step)});
}
Launch of(const AdamWDelta& it) {
  return launch("spillway_adamw_delta", blocks_of(it.n), threads::AdamWDeltaArguments{it, formula_of(it.step)});
}

}  // namespace

Launch launch_of(const Work& work) {
  return std::visit([](const auto& it) { return of(it); }, work);
}

std::span<const std::string> kernel_names() {
  static const auto kNames = [] {
    std::vector<std::string> out{"spillway_adamw", "spillway_adamw_delta", "spillway_apply", "spillway_sample"};
    for (const auto* what :
         {"sum", "convert", "round", "squares", "gather", "loss_stats", "loss_gradient", "compress"}) {
      for (const auto type : {Element::bf16, Element::fp16, Element::fp32}) out.push_back(name(what, type));
    }
    return out;
  }();
  return kNames;
}

}  // namespace spillway::device
