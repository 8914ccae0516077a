// A commit, a spec and pieces with something in every field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/journal/commit.h"
#include "spillway/journal/journal_spec.h"
#include "spillway/journal/piece.h"

namespace spillway::journal::testing {

inline constexpr std::uint64_t kIdentity = 0x1234;

inline std::vector<Piece> some_pieces(std::size_t count) {
  std::vector<Piece> out;
  for (std::uint32_t i = 0; i < count; ++i) out.push_back({{i % 3, 100 + i}, 4096 * (i + 1), i % 2, i * 77});
  return out;
}

inline Commit some_commit() {
  Commit out;
  out.generation = 7;
  out.step = 12;
  out.previous = 10;
  out.skipped = true;
  out.rank = 1;
  out.world = 4;
  out.complete = true;
  out.slot = 100;
  out.paths = 0x8005;
  for (std::size_t i = 0; i < out.update.size(); ++i) out.update[i] = std::byte(i + 1);
  out.ancestors = {{1, 3, 4}, {4, 4, 9}};
  out.use(3);
  out.use(130);
  out.payload = std::vector<std::byte>(1000, std::byte{42});
  return out;
}

/// Three chunks; the second gradient feeds all of them.
inline JournalSpec some_spec() {
  JournalSpec spec;
  spec.run = "run";
  spec.paths = 3;
  spec.chunks = {{3, 1}, {200, 4}, {2, 1}};
  spec.gradients = {{1, 0, 1}, {40, 0, 3}, {1, 2, 1}};
  return spec;
}

}  // namespace spillway::journal::testing
