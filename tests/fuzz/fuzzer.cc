// One target under libFuzzer: `fuzz_NAME` is built from this with SPILLWAY_FUZZ_TARGET=NAME.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
  spillway::fuzz::SPILLWAY_FUZZ_TARGET({bytes, count});
  return 0;
}
