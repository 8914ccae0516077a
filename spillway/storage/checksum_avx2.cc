#include "spillway/storage/checksum_avx2.h"

// Compiled with AVX2 where there is such a thing, so nothing else may be included: what headers have inline would be
// called by CPUs without it.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace spillway::storage {

std::uint64_t checksum_avx2(const void* bytes, std::size_t size, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(bytes, size, seed);
}

void add_to_checksum_avx2(void* state, const void* bytes, std::size_t size) noexcept {
  (void)XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes, size);
}

}  // namespace spillway::storage
