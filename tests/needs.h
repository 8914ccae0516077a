// What a test may find missing on a machine. It is skipped there, with the reason; where SPILLWAY_REQUIRE names the
// capability, it fails.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// Of both kinds of tests: tests/python/support/needs.py reads this list, CONTRIBUTING.md explains it.
#define SPILLWAY_CAPABILITIES(X) \
  X(accelerate)                  \
  X(axolotl)                     \
  X(bitsandbytes)                \
  X(cgroup)                      \
  X(chromium)                    \
  X(clear_refs)                  \
  X(compiler)                    \
  X(converter)                   \
  X(cuda_header)                 \
  X(datasets)                    \
  X(direct)                      \
  X(exchange)                    \
  X(fuse)                        \
  X(gguf)                        \
  X(gpu)                         \
  X(holes)                       \
  X(llama_cpp)                   \
  X(llama_server)                \
  X(llamafactory)                \
  X(loop)                        \
  X(mkfs)                        \
  X(mount)                       \
  X(nodes)                       \
  X(numa)                        \
  X(numa_machine)                \
  X(nvcc)                        \
  X(packages)                    \
  X(peft)                        \
  X(ptrace)                      \
  X(pyarrow)                     \
  X(qemu)                        \
  X(root)                        \
  X(seccomp)                     \
  X(shm)                         \
  X(slurm)                       \
  X(statx)                       \
  X(strace)                      \
  X(tensorboard)                 \
  X(tools)                       \
  X(trl)                         \
  X(uring)                       \
  X(uvicorn)                     \
  X(vllm)                        \
  X(xxhash)

namespace spillway::testing {

#define SPILLWAY_CAPABILITY_NAME(name) name,
enum class Capability : std::size_t { SPILLWAY_CAPABILITIES(SPILLWAY_CAPABILITY_NAME) };
#undef SPILLWAY_CAPABILITY_NAME

#define SPILLWAY_CAPABILITY_TEXT(name) std::string_view(#name),
inline constexpr std::array kCapabilities = {SPILLWAY_CAPABILITIES(SPILLWAY_CAPABILITY_TEXT)};
#undef SPILLWAY_CAPABILITY_TEXT

/// The names in SPILLWAY_REQUIRE, which lie between commas.
inline std::vector<std::string> required_names() {
  const char* asked = std::getenv("SPILLWAY_REQUIRE");
  std::istringstream words(asked == nullptr ? "" : asked);
  std::vector<std::string> out;
  for (std::string word; std::getline(words, word, ',');) out.push_back(word);
  return out;
}

inline bool required(Capability capability) {
  const auto names = required_names();
  return std::count(names.begin(), names.end(), kCapabilities[static_cast<std::size_t>(capability)]) > 0;
}

/// Throws where SPILLWAY_REQUIRE has a name that is no capability: a slip would ask for nothing.
inline void check_required() {
  for (const auto& name : required_names()) {
    if (std::count(kCapabilities.begin(), kCapabilities.end(), name) > 0) continue;
    throw std::invalid_argument("SPILLWAY_REQUIRE: " + name + " is none of the capabilities in tests/needs.h");
  }
}

}  // namespace spillway::testing

/// Leaves the test unless `there`, with words as they are streamed: skipped, or failed where the capability is
/// required.
#define SPILLWAY_NEEDS(capability, there, why)                                                                 \
  do {                                                                                                         \
    if (there) break;                                                                                          \
    if (::spillway::testing::required(::spillway::testing::Capability::capability)) {                          \
      FAIL() << "SPILLWAY_REQUIRE asks for " #capability ": " << why; /* NOLINT(bugprone-macro-parentheses) */ \
    }                                                                                                          \
    GTEST_SKIP() << #capability ": " << why; /* NOLINT(bugprone-macro-parentheses) */                          \
  } while (false)
