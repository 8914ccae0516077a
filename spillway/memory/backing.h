// A backing says what a tier of host memory consists of: pages of a node, any pages, or those of a mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::memory {

/// What a tier of host memory is made of: whose pages its part of an arena has. A new kind is a row here, what
/// memory::Arena maps for it, and what held() asks of it.
struct Backing {
  enum class Kind : std::uint8_t {
    anywhere,  ///< pages wherever the kernel puts them
    node,      ///< pages of a NUMA node of this machine
    file,      ///< pages of a file without a name, on the file system of `directory`
  };

  Kind kind = Kind::anywhere;
  int node = 0;                          ///< the kernel's number; of Kind::node
  std::filesystem::path directory = {};  ///< one file in each has all parts that are for it; of Kind::file

  bool operator==(const Backing&) const = default;
  /// The NUMA node whose CPUs should work there; empty: any will do.
  [[nodiscard]] std::optional<int> near() const { return kind == Kind::node ? std::optional(node) : std::nullopt; }
};

[[nodiscard]] inline Backing anywhere() {
  return {};
}
[[nodiscard]] inline Backing on_node(int node) {
  return {.kind = Backing::Kind::node, .node = node};
}
[[nodiscard]] inline Backing in_file(std::filesystem::path directory) {
  return {.kind = Backing::Kind::file, .directory = std::move(directory)};
}

/// Bytes [begin, end) of an arena, whole pages, and what they are made of.
struct ArenaPart {
  Bytes begin = 0, end = 0;
  Backing backing = {};

  [[nodiscard]] Bytes bytes() const noexcept { return end - begin; }
};

/// Bytes of a part.
struct Held {
  Bytes there = 0;      ///< that lie where the part's backing says
  Bytes in_memory = 0;  ///< of those, what the kernel counts in this process's memory (VmRSS)
};

/// By part, as the kernel says now of every page. What may lie anywhere is there.
[[nodiscard]] std::vector<Held> held(std::span<const std::byte> arena, const std::vector<ArenaPart>& parts);

}  // namespace spillway::memory
