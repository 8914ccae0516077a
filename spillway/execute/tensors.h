// Tensors and whole states in and out of the tiers, between steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "spillway/execute/tiers.h"
#include "spillway/kernels/nested_scales.h"
#include "spillway/network/port.h"
#include "spillway/plan/description.h"
#include "spillway/state/checkpoint.h"
#include "spillway/state/convert.h"
#include "spillway/state/ownership.h"

namespace spillway::execute {

/// Sends what its owner has of a chunk to all other processes, to the same memory there; nothing of what each one has.
/// All of them call it alike. `weight`, `state`: null: not wanted. `network`: null: there are no others.
void share_chunk(const plan::Description& description, const state::Layout& layout, network::Port* network,
                 std::size_t chunk, std::byte* weight, std::byte* state);

// These do what state::save_weights and state::save_state do, called by all processes of a world, each with a store
// that shares what it loads: rank 0 alone writes, and the others load what it does in its order.

void save_weights(const state::ChunkStream& stream, const plan::Description& description,
                  const std::filesystem::path& directory, const state::SaveOptions& options);
void save_state(const state::ChunkStream& stream, const plan::Description& description,
                const std::filesystem::path& directory);

/// Not for use while an instance runs. What was never stored is zero.
class Tensors : private state::ChunkStore {
 public:
  /// `scratch`: free between steps, for the largest chunk. `filled`: all tensors are on their tiers. `network`: to the
  /// other processes of the description's world, which have a part of the chunks; null: there are none. The rest must
  /// outlive it.
  Tensors(const plan::Description& description, const state::Layout& layout, Tiers& tiers, std::span<std::byte> scratch,
          bool filled, network::Port* network = nullptr);

  /// fp32 values of elements [first, first + size) of tensor number `tensor`. Throws Error(bad_input) beyond its end.
  /// Of a form that needs the mean of a tensor's scales (state/form.h) a whole tensor is stored at once, or all of it
  /// is measured first, in order. What another process has is left to it by store(); fetch() and what saves are called
  /// by all of them alike, and give each one everything. Of what is saved rank 0 alone writes files.
  void store(std::size_t tensor, std::uint64_t first, std::span<const float> values);
  void measure(std::size_t tensor, std::uint64_t first, std::span<const float> values);
  void fetch(std::size_t tensor, std::uint64_t first, std::span<float> values);
  /// Everything on its tier; `scratch` is free.
  void settle();
  /// Whole chunks, as what loads a state stores them; `scratch` is free.
  [[nodiscard]] state::ChunkStore& chunks();

  // These do what state::load_weights and its like do:

  void load_weights(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& names);
  void save_weights(const std::filesystem::path& directory, const state::SaveOptions& options);
  void save_state(const std::filesystem::path& directory);
  state::StateFormat load_state(const std::filesystem::path& directory, const std::filesystem::path& weights,
                                const std::map<std::string, std::string>& names);

 private:
  struct Memory {
    std::byte* weight;
    std::byte* state;
  };
  [[nodiscard]] Memory memory(std::size_t chunk) const;
  [[nodiscard]] bool has(std::size_t chunk) const { return description_.has(layout_, layout_.chunks()[chunk]); }
  void share(std::size_t chunk, std::byte* weight, std::byte* state);
  [[nodiscard]] state::ChunkStream stream();
  [[nodiscard]] float scale_mean(std::size_t tensor, std::span<const float> values);
  state::ChunkFields edit(std::size_t chunk);
  void put_back();
  void load(std::size_t chunk, std::byte* weight, std::byte* state) override;
  void store(std::size_t chunk, const std::byte* weight, const std::byte* state) override;

  const plan::Description& description_;
  const state::Layout& layout_;
  Tiers& tiers_;
  const std::span<std::byte> scratch_;
  std::vector<bool> filled_;  ///< by chunk: something was stored
  network::Port* const network_;
  std::size_t edited_;                                  ///< chunk in scratch memory; none: the count of chunks
  bool changed_ = false;                                ///< its changes are not on its tier
  std::map<std::size_t, kernels::ScaleMean> measured_;  ///< by tensor
};

}  // namespace spillway::execute
