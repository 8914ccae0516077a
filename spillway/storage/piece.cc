#include "spillway/storage/piece.h"

#include <cerrno>

namespace spillway::storage {

bool is_interrupted(std::int32_t result) noexcept {
  return result == -EINTR || result == -EAGAIN;
}

Verdict judge(Piece& piece, std::int32_t result) noexcept {
  if (is_interrupted(result)) return ++piece.fruitless < kMostFruitless ? Verdict::again : Verdict::failed;
  if (result < 0) return Verdict::failed;
  const auto moved = static_cast<std::uint32_t>(result);
  if (moved >= piece.bytes - piece.moved) return Verdict::whole;
  if (moved == 0) return Verdict::stalled;
  const std::uint32_t whole = moved / kTransferAlignment * kTransferAlignment;  // O_DIRECT goes on from there
  piece.fruitless = whole > 0 ? 0 : piece.fruitless + 1;
  piece.moved += whole;
  return piece.fruitless >= kMostFruitless ? Verdict::stalled : Verdict::again;
}

}  // namespace spillway::storage
