// Between fp32 masters and the fields of a chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "spillway/kernels/encoding.h"
#include "spillway/state/layout.h"

namespace spillway::state {

/// Views of the masters in the two groups of one chunk; nothing is owned. A group that was not given has null fields.
struct ChunkFields {
  ComputeType type = ComputeType::bf16;
  std::uint64_t elements = 0;       ///< Chunk::values(): the length of every array below
  std::byte* weight = nullptr;      ///< of `type`
  std::byte* remainder = nullptr;   ///< null where the type has none
  kernels::Encoding encoding = {};  ///< of the weight, where it is packed
  bool rounded = false;             ///< there is no remainder: masters are what the weights say
  float scale_mean = 0;             ///< of the tensor's scales, where its form needs it to be packed (form.h)
};

/// The fields of a chunk of `elements` elements in memory: its weight group and its state group, aligned to 4 bytes,
/// either null. A chunk that is frozen has no state group.
[[nodiscard]] ChunkFields chunk_fields(ComputeType type, std::uint64_t elements, std::byte* weight, std::byte* state,
                                       Training training = Training::full);

/// The fields of a chunk of a layout whose compute type is `type`.
[[nodiscard]] inline ChunkFields chunk_fields(ComputeType type, const Chunk& chunk, std::byte* weight,
                                              std::byte* state) {
  auto out = chunk_fields(type_of(chunk.form, type), chunk.values(), weight, state, chunk.training);
  out.encoding = encoding_of(chunk.form, type);
  if (chunk.form == Form::bf16_master) out.rounded = true, out.remainder = nullptr;
  return out;
}

/// Makes `masters` the elements [first, first + size) of the chunk, bit for bit: bf16 weight and remainder, fp16 weight
/// and master, or fp32 weight; of a rounded chunk the weight that these would have. Moments stay as they are. With bf16
/// and fp16 both groups are needed. What is packed is rounded to its codes, block by block: `first` begins a block, and
/// a part of one is all that there is of it. Throws Error(internal) beyond the chunk, or where no block begins.
void to_chunk(std::span<const float> masters, const ChunkFields& chunk, std::uint64_t first);

/// The masters of elements [first, first + size): inverts to_chunk; of a rounded chunk they are the weights, of a
/// packed one what its codes stand for.
void from_chunk(const ChunkFields& chunk, std::uint64_t first, std::span<float> masters);

/// Makes the remainders of `n` weights what says that each weight is its master.
void set_masters(ComputeType type, const std::byte* weight, std::byte* remainder, std::size_t n);

}  // namespace spillway::state
