// Everything on drives, layer by layer through the devices: ZeRO-Infinity (every micro-batch passes the whole model),
// GreedySnake (arXiv 2512.17570: every micro-batch of a layer before the next layer, part of the update beside the next
// forward pass; what moves when is that of its authors' solver, github.com/npz7yyk/FlexTrain,
// flextrain/auto_config.py), and LoHan (one large batch, each layer updated during backward as soon as its gradient is
// there). Several devices work alike, each on its own micro-batches, and take an equal part of a layer from the drives.
#pragma once

#include <cstdint>

#include "research/study/hardware.h"

namespace spillway::study {

struct StreamedWork {
  double parameters = 0;
  std::uint64_t layers = 1;
  double tokens = 0;  ///< of a micro-batch of one device
  std::uint64_t micro_batches = 1;
  double border = 0;  ///< bytes of one activation between layers, a micro-batch; kept in host memory
};

/// Seconds of a step. No layer's weights are read beside the layer before: its prefetch is one tensor deep.
[[nodiscard]] double zero_infinity_seconds(const Hardware& hardware, const StreamedWork& work);
/// Seconds of a steady step. `overlapped`: share of the update that runs beside the next forward pass.
[[nodiscard]] double greedy_snake_seconds(const Hardware& hardware, const StreamedWork& work, double overlapped = 0.5);
/// Every drive alike, states distributed to them evenly.
[[nodiscard]] double lohan_seconds(const Hardware& hardware, const StreamedWork& work);

}  // namespace spillway::study
