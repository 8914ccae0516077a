#include "spillway/plan/piece_staging.h"

#include <algorithm>

namespace spillway::plan {
namespace {

/// Reads and writes are aligned to it.
constexpr Bytes kAlignment = 4096;
constexpr Bytes kMostBytes = 16 * MiB;
constexpr Bytes kMostPairs = 16;

}  // namespace

bool is_movable(const Description& description, const state::Chunk& chunk) {
  return chunk.asked < 1 && !state::is_trainable(chunk.training) && !description.shard_frozen;
}

PieceStaging piece_staging(const Description& description, const state::Layout& layout) {
  Bytes largest = 0, count = 0;
  for (const auto& chunk : layout.chunks()) {
    if (!is_movable(description, chunk)) continue;
    largest = std::max(largest, weight_bytes(description.rule(), chunk));
    ++count;
  }
  if (count < 2) return {};
  const auto pair = 2 * round_up(largest, kAlignment);
  const auto most = std::min(kMostPairs, count / 2);
  return {.pair = pair, .pairs = static_cast<std::uint32_t>(std::clamp<Bytes>(kMostBytes / pair, 1, most))};
}

}  // namespace spillway::plan
