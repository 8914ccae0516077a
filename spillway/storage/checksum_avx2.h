// The checksum for CPUs with AVX2, which gives the same numbers. Where the compiler targets others, it is the baseline
// again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway::storage {

std::uint64_t checksum_avx2(const void* bytes, std::size_t size, std::uint64_t seed) noexcept;
/// Adds bytes to the state of a RunningChecksum.
void add_to_checksum_avx2(void* state, const void* bytes, std::size_t size) noexcept;

}  // namespace spillway::storage
