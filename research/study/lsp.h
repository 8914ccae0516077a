// LSP-Offload (arXiv 2406.10181, and what its released scripts run): weights on the device, gradients in a subspace to
// the host and back; its ZeRO-Offload-like baseline; and training without offload.
#pragma once

#include <cstdint>
#include <vector>

#include "research/study/hardware.h"

namespace spillway::study {

/// A matrix of a layer, and how many of its kind.
struct LspMatrix {
  double rows = 0, columns = 0;
  unsigned count = 1;
  bool trained = true;  ///< offloaded; the others' gradients are formed, and dropped, by the published code
};

struct LspModel {
  std::uint64_t layers = 1;
  std::vector<LspMatrix> matrices;  ///< of one layer, in the order of a forward pass
  double table = 0;                 ///< elements of the head's matrix, which does not train
};

struct LspWork {
  double tokens = 0;  ///< of an iteration
  double rank = 0;    ///< d; 0: whole gradients
};

enum class LspMethod : std::uint8_t {
  resident,   ///< nothing offloaded, no optimizer: forward, recomputation, both gradients
  adapters,   ///< forward, recomputation, gradients of inputs alone: LoRA without its adapters
  zero,       ///< whole gradients in fp32 leave during backward; then every update, result in fp32, and only then the
              ///< next forward pass
  published,  ///< S in fp32 by dense projectors (rank 0: gradients), one matrix after the other as LspDelays says
};

/// The published schedule's settings, in matrices.
struct LspDelays {
  unsigned process = 0;  ///< the host waits for an update, and begins no other pass, so many passes after its gradient
  unsigned apply = 0;    ///< the device waits for the result so many passes after
  unsigned late = 0;     ///< so many of the first matrices do everything right before their next forward pass
};

struct LspStep {
  double seconds = 0;       ///< from one steady step's end to the next
  double down = 0, up = 0;  ///< bytes over the link
  double operations = 0;    ///< on the device
};

[[nodiscard]] LspStep lsp_step(const Hardware& hardware, const LspModel& model, const LspWork& work, LspMethod method,
                               const LspDelays& delays = {});

}  // namespace spillway::study
