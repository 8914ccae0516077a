// Fields of structs by name. Bindings, files and agreements walk over one list of them, so that a key has one name.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "spillway/base/error.h"

namespace spillway {

/// Files leave out a field without a value, or write it: null, or {}.
enum class Empty : unsigned char { left_out, written };

/// A field under its own name.
template <class T, class V>
struct Field {
  using Value = V;
  const char* name;
  V T::*member;
  Empty empty = Empty::left_out;

  /// The name in files, which have `class` where languages want `class_`.
  [[nodiscard]] constexpr std::string_view key() const {
    const std::string_view out = name;
    return out.ends_with('_') ? out.substr(0, out.size() - 1) : out;
  }
  const V& get(const T& it) const { return it.*member; }
  void set(T& it, V value) const { it.*member = std::move(value); }
};
template <class T, class V>
Field(const char*, V T::*) -> Field<T, V>;
template <class T, class V>
Field(const char*, V T::*, Empty) -> Field<T, V>;

/// The fields of a struct; none: it is no struct that is walked over.
template <class T>
inline constexpr std::tuple<> kFields{};

template <class T>
inline constexpr bool kHasFields = std::tuple_size_v<std::remove_const_t<decltype(kFields<T>)>> > 0;

/// Calls `act` with each field of T.
template <class T, class Act>
void for_each_field(const Act& act) {
  std::apply([&](const auto&... field) { (act(field), ...); }, kFields<T>);
}

/// The words of an enumeration whose values count from 0; none: it has no words.
template <class E>
inline constexpr std::array<const char*, 0> kWords{};

template <class E>
inline constexpr bool kHasWords = !kWords<E>.empty();

template <class E>
[[nodiscard]] constexpr const char* word_of(E value) {
  return kWords<E>[static_cast<std::size_t>(value)];
}

/// Throws Error(bad_input) that names the key and the words that are known.
template <class E>
[[nodiscard]] E parse_word(std::string_view word, std::string_view key) {
  std::string known;
  for (std::size_t i = 0; i < kWords<E>.size(); ++i) {
    if (word == kWords<E>[i]) return static_cast<E>(i);
    known += text(known.empty() ? "" : ", ", kWords<E>[i]);
  }
  throw Error(ErrorCode::bad_input, text(key, " is ", word, "; known: ", known));
}

}  // namespace spillway
