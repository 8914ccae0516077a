#include "spillway/storage/free_map.h"

#include <bit>

namespace spillway::storage {
namespace {

constexpr std::uint32_t kBits = 64;

constexpr std::uint64_t bit(std::uint32_t index) {
  return std::uint64_t{1} << index % kBits;
}

/// Sets `count` bits, and leaves room for one more word that stays clear.
std::vector<std::uint64_t> ones(std::uint32_t count) {
  std::vector<std::uint64_t> words(count / kBits + 1, ~std::uint64_t{0});
  words.back() = bit(count) - 1;
  return words;
}

/// Finds the first set bit from `from` on; at least the number of bits when there is none.
std::uint32_t next_set(const std::vector<std::uint64_t>& words, std::uint32_t from) {
  std::uint64_t word = words[from / kBits] & ~(bit(from) - 1);
  for (std::uint32_t at = from / kBits;; word = words[at]) {
    if (word != 0) return at * kBits + static_cast<std::uint32_t>(std::countr_zero(word));
    if (++at == words.size()) return at * kBits;
  }
}

}  // namespace

FreeMap::FreeMap(std::uint32_t size)
    : size_(size), free_(size), words_(ones(size)), summary_(ones(static_cast<std::uint32_t>(words_.size()))) {
  if (words_.back() == 0) summary_[(words_.size() - 1) / kBits] &= ~bit(static_cast<std::uint32_t>(words_.size() - 1));
}

bool FreeMap::is_free(std::uint32_t place) const noexcept {
  return (words_[place / kBits] & bit(place)) != 0;
}

std::uint32_t FreeMap::take() noexcept {
  std::uint32_t place = find(next_);
  if (place >= size_) place = find(0);
  take(place);
  next_ = place + 1;
  return place;
}

void FreeMap::take(std::uint32_t place) noexcept {
  std::uint64_t& word = words_[place / kBits];
  word &= ~bit(place);
  if (word == 0) summary_[place / kBits / kBits] &= ~bit(place / kBits);
  --free_;
}

void FreeMap::put(std::uint32_t place) noexcept {
  words_[place / kBits] |= bit(place);
  summary_[place / kBits / kBits] |= bit(place / kBits);
  ++free_;
}

/// The search is in the word of `from` first, then by the summary, so that a full volume of terabytes costs
/// microseconds.
std::uint32_t FreeMap::find(std::uint32_t from) const noexcept {
  const std::uint64_t rest = words_[from / kBits] & ~(bit(from) - 1);
  if (rest != 0) return from / kBits * kBits + static_cast<std::uint32_t>(std::countr_zero(rest));
  const std::uint32_t word = next_set(summary_, from / kBits + 1);
  if (word >= words_.size()) return size_;
  return word * kBits + static_cast<std::uint32_t>(std::countr_zero(words_[word]));
}

}  // namespace spillway::storage
