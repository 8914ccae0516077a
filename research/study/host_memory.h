// Host memory of SSD-offloaded training, activations excluded: ZeRO-Infinity and MemAscend (arXiv 2505.23254, section
// 3: the uniform pool, rounded pinned blocks, the overflow check's temporaries).
#pragma once

#include "research/study/shape.h"
#include "spillway/base/bytes.h"

namespace spillway::study {

/// Bytes by what holds them.
struct HostMemory {
  Bytes pool = 0;       ///< parameters on their way
  Bytes gradients = 0;  ///< of the whole model, 2 bytes each
  Bytes staging = 0;    ///< optimizer states on their way
  Bytes check = 0;      ///< temporaries of the overflow check

  [[nodiscard]] Bytes total() const noexcept { return pool + gradients + staging + check; }
};

/// Slots of the parameter pool: tables and layers in flight.
struct PoolSlots {
  std::uint64_t tables = 2, layers = 1;
};

/// Every slot of the pool as large as the embedding, seven to a layer; each pinned block rounded up to a power of two;
/// the overflow check takes 1.5 times the gradients more.
[[nodiscard]] HostMemory zero_infinity_memory(const DecoderShape& shape, const PoolSlots& slots = {});

/// Slots by shape class, nothing rounded, the check without temporaries; gradients and staging as before.
[[nodiscard]] HostMemory memascend_memory(const DecoderShape& shape, const PoolSlots& slots = {});

}  // namespace spillway::study
