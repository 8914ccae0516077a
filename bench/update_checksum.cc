// Would checksums of what an update writes be cheaper beside the update, while the bytes are still in the cache, than
// where they are now, on the path's thread when a piece is written?
//
//   update_checksum [--params N] [--rounds R]
//
// One thread, exact AdamW, chunks of 4 Mi elements in turn. `apart`: a chunk is updated, then each of its pieces of
// 1 MiB is summed. `folded`: each array of a tile of 64 Ki elements is summed as soon as the tile is updated; a piece
// of 1 MiB has the bytes of 4 to 8 tiles, which several threads take in any order, so this is what folding could give
// at best. `update`: no sums at all. Prints medians of alternating rounds.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

#include "bench/arguments.h"
#include "bench/noise.h"
#include "spillway/base/bytes.h"
#include "spillway/kernels/update.h"
#include "spillway/storage/checksum.h"

namespace {

using namespace spillway;  // NOLINT

constexpr std::size_t kChunk = std::size_t{4} << 20, kTile = std::size_t{64} << 10;

/// Weight, remainder and both moments of all parameters, array by array within a chunk, as a chunk lies in memory.
class State {
 public:
  explicit State(std::size_t params) : params_(params / kChunk * kChunk), bytes_(params_ * 12), grads_(params_ * 2) {
    bench::fill_with_noise(grads_);
    for (std::size_t i = 1; i < grads_.size(); i += 2) grads_[i] = std::byte{0x3A};  // small, and finite
  }
  [[nodiscard]] std::size_t params() const noexcept { return params_; }

  void update(std::size_t first) {
    const std::size_t at = first % kChunk;
    kernels::update(kernels::UpdateForm{},
                    {.weight = array(first, 0) + at * 2,
                     .remainder = array(first, 2) + at * 2,
                     .moments = {array(first, 4) + at * 4, array(first, 8) + at * 4},
                     .grad = grads_.data() + first * 2,
                     .n = kTile,
                     .index = first},
                    {.learning_rate = 1e-5, .step = 3});
  }
  [[nodiscard]] std::uint64_t sum_of_chunk(std::size_t first) const {
    std::uint64_t sum = 0;
    for (Bytes at = 0; at < kChunk * 12; at += MiB) {
      sum ^= storage::checksum({bytes_.data() + first * 12 + at, MiB}, at);
    }
    return sum;
  }
  [[nodiscard]] std::uint64_t sum_of_tile(std::size_t first) {
    const std::size_t at = first % kChunk;
    std::uint64_t sum = 0;
    for (const auto& [before, width] : {std::pair{0, 2}, {2, 2}, {4, 4}, {8, 4}}) {
      const auto bytes = static_cast<std::size_t>(width);
      sum ^= storage::checksum({array(first, static_cast<std::size_t>(before)) + at * bytes, kTile * bytes}, at);
    }
    return sum;
  }

 private:
  /// Of the chunk that `first` lies in, the array that begins after so many bytes per element.
  std::byte* array(std::size_t first, std::size_t before) {
    return bytes_.data() + first / kChunk * kChunk * 12 + before * kChunk;
  }
  std::size_t params_;
  std::vector<std::byte> bytes_, grads_;
};

enum class Way { update, apart, folded };
constexpr std::array kWays = {Way::update, Way::apart, Way::folded};
constexpr std::array kNames = {"update", "apart", "folded"};

double seconds_of(State& state, Way way, std::uint64_t& sum) {
  const auto began = std::chrono::steady_clock::now();
  for (std::size_t chunk = 0; chunk < state.params(); chunk += kChunk) {
    for (std::size_t tile = chunk; tile < chunk + kChunk; tile += kTile) {
      state.update(tile);
      if (way == Way::folded) sum ^= state.sum_of_tile(tile);
    }
    if (way == Way::apart) sum ^= state.sum_of_chunk(chunk);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

double median(std::vector<double> of) {
  std::sort(of.begin(), of.end());
  return of[of.size() / 2];
}

}  // namespace

int main(int count, char** words) {
  bench::Arguments arguments(count, words, "update_checksum [--params N] [--rounds R]");
  State state(arguments.number("--params", 128 << 20));
  const auto rounds = arguments.number("--rounds", 7);
  (void)arguments.rest(0, 0);
  std::array<std::vector<double>, kWays.size()> seconds;
  std::uint64_t sum = 0;
  for (std::uint64_t round = 0; round <= rounds; ++round) {
    for (std::size_t way = 0; way < kWays.size(); ++way) {
      const double took = seconds_of(state, kWays[way], sum);
      if (round > 0) seconds[way].push_back(took);  // the first one warms up
    }
  }
  for (std::size_t way = 0; way < kWays.size(); ++way) {
    std::printf("%-7s %.3f G params/s\n", kNames[way],
                static_cast<double>(state.params()) / median(seconds[way]) / 1e9);
  }
  std::printf("(sums %016llx)\n", static_cast<unsigned long long>(sum));
}
