// The free places of one path.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway::storage {

/// Hands out the places 0 .. size-1, each to one owner at a time: the next free one after the last, and after the end
/// from the start, so that what is taken together lies together. All memory is allocated at construction. Not thread
/// safe.
class FreeMap {
 public:
  /// Every place is free.
  explicit FreeMap(std::uint32_t size);

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint32_t free() const noexcept { return free_; }
  [[nodiscard]] bool is_free(std::uint32_t place) const noexcept;  ///< `place` < size

  /// Takes a free place; there must be one.
  [[nodiscard]] std::uint32_t take() noexcept;
  /// Takes that place, which must be free.
  void take(std::uint32_t place) noexcept;
  /// Frees a place, which must not be free.
  void put(std::uint32_t place) noexcept;

 private:
  /// The first free place from `from` on; size() when there is none.
  [[nodiscard]] std::uint32_t find(std::uint32_t from) const noexcept;

  std::uint32_t size_;
  std::uint32_t free_;
  std::uint32_t next_ = 0;              ///< where `take` looks first
  std::vector<std::uint64_t> words_;    ///< a bit per place: free
  std::vector<std::uint64_t> summary_;  ///< a bit per word: has a free place
};

}  // namespace spillway::storage
