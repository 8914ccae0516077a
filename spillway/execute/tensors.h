// Tensors and whole states in and out of the tiers, between steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "spillway/execute/tiers.h"
#include "spillway/plan/description.h"
#include "spillway/state/checkpoint.h"
#include "spillway/state/convert.h"

namespace spillway::execute {

/// Not for use while an instance runs. What was never stored is zero.
class Tensors : private state::ChunkStore {
 public:
  /// `scratch`: free between steps, for the largest chunk. `filled`: all tensors are on their tiers. The rest must
  /// outlive it.
  Tensors(const plan::Description& description, const state::Layout& layout, Tiers& tiers, std::span<std::byte> scratch,
          bool filled);

  /// fp32 values of elements [first, first + size) of tensor number `tensor`. Throws Error(bad_input) beyond its end.
  void store(std::size_t tensor, std::uint64_t first, std::span<const float> values);
  void fetch(std::size_t tensor, std::uint64_t first, std::span<float> values);
  /// Everything on its tier; `scratch` is free.
  void settle();

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
  [[nodiscard]] state::ChunkStream stream();
  state::ChunkFields edit(std::size_t chunk);
  void put_back();
  void load(std::size_t chunk, std::byte* weight, std::byte* state) override;
  void store(std::size_t chunk, const std::byte* weight, const std::byte* state) override;

  const plan::Description& description_;
  const state::Layout& layout_;
  Tiers& tiers_;
  const std::span<std::byte> scratch_;
  std::vector<bool> filled_;  ///< by chunk: something was stored
  std::size_t edited_;        ///< chunk in scratch memory; none: the count of chunks
  bool changed_ = false;      ///< its changes are not on its tier
};

}  // namespace spillway::execute
