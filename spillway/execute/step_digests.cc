#include "spillway/execute/step_digests.h"

#include <algorithm>
#include <utility>

#include "spillway/base/bytes.h"
#include "spillway/base/error.h"
#include "spillway/storage/checksum.h"

namespace spillway::execute {
namespace {

constexpr Bytes kTile = MiB;
constexpr Bytes kStaging = 4 * MiB;

/// Appends the checksum of each tile.
void append_tiles(std::span<const std::byte> bytes, ThreadPool& thread_pool, std::vector<std::uint64_t>& tiles) {
  const auto first = tiles.size();
  tiles.resize(first + ceil_div(bytes.size(), kTile));
  thread_pool.run(tiles.size() - first, [&](std::size_t tile) {
    const auto at = tile * kTile;
    tiles[first + tile] = storage::checksum(bytes.subspan(at, std::min(kTile, bytes.size() - at)), tile);
  });
}

std::uint64_t join_tiles(const std::vector<std::uint64_t>& tiles) {
  return storage::checksum(std::as_bytes(std::span(tiles)), tiles.size());
}

}  // namespace

std::uint64_t digest(std::span<const std::byte> bytes, ThreadPool& thread_pool) {
  std::vector<std::uint64_t> tiles;
  append_tiles(bytes, thread_pool, tiles);
  return join_tiles(tiles);
}

StepDigests::StepDigests(const plan::Schedule& schedule, const state::Layout& layout,
                         const plan::Description& description, Arenas arenas, const sink::Arithmetic& where,
                         ThreadPool& thread_pool)
    : schedule_(schedule),
      layout_(layout),
      rule_(description.rule()),
      arenas_(arenas),
      where_(where),
      thread_pool_(thread_pool),
      copied_(where.device.make_event()) {}

void StepDigests::begin(bool wanted) {
  const std::lock_guard lock(mutex_);
  wanted_ = wanted;
  made_.clear();
}

void StepDigests::add_weights(const plan::Pass& pass) {
  if (!wanted_) return;
  for (const auto& [chunks, here, whole] : pass.weights) {
    if (layout_.chunks()[chunks.first].asked < 1) continue;
    const auto& buffer = schedule_.buffers[here];
    Bytes bytes = 0;
    for (auto c = chunks.first; c < chunks.end(); ++c) bytes += weight_bytes(rule_, layout_.chunks()[c]);
    add(text("the weights of ", layout_.blocks()[pass.block].name, " (chunk ", chunks.first, ") in ",
             traits(pass.kind).key),
        true, {arenas_.at(buffer), std::min(bytes, buffer.bytes)}, buffer.on_device());
  }
}

void StepDigests::add_gradient(const std::string& tensor, std::size_t chunk, std::span<const std::byte> values,
                               bool on_device) {
  if (wanted_) add(text("the gradient of ", tensor, " (chunk ", chunk, ")"), false, values, on_device);
}

void StepDigests::add(std::string name, bool is_weight, std::span<const std::byte> bytes, bool on_device) {
  const auto value = on_device ? digest_device(bytes) : digest(bytes, thread_pool_);
  const std::lock_guard lock(mutex_);
  made_.push_back({std::move(name), is_weight, value});
}

/// In the order of the passes' stream, piece by piece.
std::uint64_t StepDigests::digest_device(std::span<const std::byte> bytes) {
  staging_.resize(kStaging);
  std::vector<std::uint64_t> tiles;
  for (Bytes at = 0; at < bytes.size(); at += kStaging) {
    const auto piece = bytes.subspan(at, std::min(kStaging, bytes.size() - at));
    where_.device.copy(where_.stream, device::Direction::from_device, staging_.data(), piece.data(), piece.size());
    where_.device.record(copied_, where_.stream);
    where_.device.synchronise(copied_);
    append_tiles(std::span(staging_).first(piece.size()), thread_pool_, tiles);
  }
  return join_tiles(tiles);
}

std::vector<StepDigest> StepDigests::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(made_, {});
}

}  // namespace spillway::execute
