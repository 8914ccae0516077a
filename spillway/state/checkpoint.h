// Weights and optimizer state between files and wherever the chunks lie.
//
// Every operation walks the chunks once, in order, through the caller's scratch memory: what it holds besides is small
// and does not grow with the model's elements. Files are described in docs/formats/checkpoint.md; they name tensors,
// never chunks, so they do not depend on chunk size or placement.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "spillway/base/bytes.h"
#include "spillway/state/layout.h"
#include "spillway/state/rule.h"
#include "spillway/state/safetensors.h"

namespace spillway::state {

/// Fetches and stores the field groups of one chunk, wherever they lie. Implemented by who knows the placement; both
/// calls are complete when they return. What they throw passes through the operations below.
class ChunkStore {
 public:
  virtual ~ChunkStore() = default;
  /// Copies the chunk's weight group and its state group into `weight` and `state`; null: not wanted.
  virtual void load(std::size_t chunk, std::byte* weight, std::byte* state) = 0;
  /// Replaces the groups by `weight` and `state`; null: unchanged.
  virtual void store(std::size_t chunk, const std::byte* weight, const std::byte* state) = 0;
};

/// What every operation walks. `scratch` is at least scratch_bytes() long; groups given to `store` begin at multiples
/// of 4096 bytes from its start.
struct ChunkStream {
  const Layout& layout;
  UpdateRule rule;
  ChunkStore& store;
  std::span<std::byte> scratch;  ///< aligned to 4 bytes at least; to what `store` needs
};

/// Scratch for the largest chunk: its weight and its state.
[[nodiscard]] Bytes scratch_bytes(const Layout& layout, const UpdateRule& rule) noexcept;
/// Throws Error(internal) when the stream has less.
void check_scratch(const ChunkStream& stream);

/// Name in the layout to name in the checkpoint; a tensor that is not in it has the same name in both. An empty name:
/// the checkpoint holds no such tensor.
using StoredNames = std::map<std::string, std::string>;

/// Starts from pretrained weights: masters exactly those of the file (BF16, F16, F32; F64 rounded), moments zero,
/// padding zero; tensors that the checkpoint does not hold zero. What is packed is rounded to its codes. Throws
/// Error(bad_input) that names the tensor, before anything is stored, when a tensor is missing, has another shape (both
/// are named), or another type. Tensors of the checkpoint that the layout lacks are passed over.
void load_weights(const ChunkStream& stream, const SafetensorsReader& checkpoint, const StoredNames& names = {});

struct SaveOptions {
  Bytes max_shard = 50'000'000'000;  ///< bytes of tensors in one file, as save_pretrained's max_shard_size
  StoredNames names = {};
};

/// Writes `directory`/model*.safetensors (and index): the compute weights, BF16, F16 or F32, tensors in layout order;
/// packed ones as layers multiply by them.
/// Chunks of which the checkpoint holds nothing are not touched.
/// The directory exists. Errors as SafetensorsWriter; then the directory is as it was.
void save_weights(const ChunkStream& stream, const std::filesystem::path& directory, const SaveOptions& options = {});

/// Writes residual.safetensors (bf16) or master.safetensors (fp16) and a file for each moment, with int8 one more for
/// its scales, to `directory`, which is made when it is missing (its parent exists); the auxiliary fields of what is
/// reduced, too (optim/reduction.h).
void save_state(const ChunkStream& stream, const std::filesystem::path& directory);

/// Inverts save_weights and save_state bit for bit; moments of another format are converted (moments.h). Returns the
/// format that was found. `weights` as for SafetensorsReader; frozen tensors that it does not hold stay as they are, as
/// packed ones have to, since files of weights do not hold their codes; the others must be there. Throws
/// Error(bad_input) that names file and tensor, before anything is stored, when one is missing, one too many (state
/// only), of another shape, of another type, or when the state is of an optimizer with other moments.
StateFormat load_state(const ChunkStream& stream, const std::filesystem::path& directory,
                       const std::filesystem::path& weights, const StoredNames& names = {});

}  // namespace spillway::state
