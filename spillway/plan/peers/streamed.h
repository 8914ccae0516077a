// Everything on drives, layer by layer through a device: ZeRO-Infinity (every micro-batch passes the whole model),
// GreedySnake (every micro-batch of a layer before the next layer, part of the update beside the next forward pass),
// and LoHan (one large batch, each layer updated during backward as soon as its gradient is there).
#pragma once

#include <cstdint>

#include "spillway/plan/hardware.h"

namespace spillway::plan {

struct StreamedWork {
  double parameters = 0;
  std::uint64_t layers = 1;
  double tokens = 0;  ///< of a micro-batch
  std::uint64_t micro_batches = 1;
  double border = 0;  ///< bytes of one activation between layers, a micro-batch; kept in host memory
};

/// Seconds of a step.
[[nodiscard]] double zero_infinity_seconds(const Hardware& hardware, const StreamedWork& work);
/// `overlapped`: share of the update that runs beside the next forward pass.
[[nodiscard]] double greedy_snake_seconds(const Hardware& hardware, const StreamedWork& work, double overlapped = 0.5);
/// Every drive alike, states dealt to them evenly.
[[nodiscard]] double lohan_seconds(const Hardware& hardware, const StreamedWork& work);

}  // namespace spillway::plan
