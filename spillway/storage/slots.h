// Numbered slots for things that come and go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace spillway::storage {

/// It allocates only when there are more at once than ever before. References last until the next `add`.
template <class T>
class Slots {
 public:
  using Id = std::uint32_t;

  explicit Slots(std::size_t reserve) {
    items_.reserve(reserve);
    free_.reserve(reserve);
  }

  Id add(T item) {
    if (free_.empty()) {
      free_.reserve(items_.size() + 1);  // so that `take` never allocates
      items_.push_back(std::move(item));
      return static_cast<Id>(items_.size() - 1);
    }
    const Id id = free_.back();
    free_.pop_back();
    items_[id] = std::move(item);
    return id;
  }

  /// The number may be used again.
  T take(Id id) {
    free_.push_back(id);
    return std::exchange(items_[id], T{});
  }

  [[nodiscard]] T& operator[](Id id) { return items_[id]; }
  /// Those that are there.
  [[nodiscard]] std::size_t size() const noexcept { return items_.size() - free_.size(); }

 private:
  std::vector<T> items_;
  std::vector<Id> free_;
};

}  // namespace spillway::storage
