// Fields of structs by name. Bindings, files and agreements walk over one list of them, so that a key has one name.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "spillway/base/error.h"

namespace spillway {

/// When a file has a field.
enum class Presence : unsigned char {
  with_value,       ///< left out if it is an optional without a value, or an empty map
  written,          ///< always written: null, or {}
  without_default,  ///< left out if it has the default of its struct
  required,         ///< always written; a file without it is refused
};

inline constexpr double kMostNumber = 1e18;

/// How files have a field.
struct InFile {
  Presence presence = Presence::with_value;
  double most = kMostNumber;   ///< of a number, or of numbers in a list; the least is 0
  bool refuses_empty = false;  ///< 0, empty text and an empty list are refused

  static constexpr InFile write_always(double most = kMostNumber) { return {Presence::written, most}; }
  static constexpr InFile omit_default(double most = kMostNumber) { return {Presence::without_default, most}; }
  static constexpr InFile require(double most = kMostNumber) { return {Presence::required, most}; }
  [[nodiscard]] constexpr InFile refuse_empty() const { return {presence, most, true}; }
};

/// The name of a field in files, which have `class` where languages want `class_`.
[[nodiscard]] inline std::string name_key(std::string_view name) {
  return std::string(name.ends_with('_') ? name.substr(0, name.size() - 1) : name);
}

/// A field under its own name.
template <class T, class V>
struct Field {
  using Value = V;
  const char* name;
  V T::*member;
  InFile in_file = {};

  const V& get(const T& it) const { return it.*member; }
  void set(T& it, V value) const { it.*member = std::move(value); }
};
template <class T, class V>
Field(const char*, V T::*) -> Field<T, V>;
template <class T, class V>
Field(const char*, V T::*, InFile) -> Field<T, V>;

/// A field that Python and files have as another type: an optimizer as its name.
template <class T, class V>
struct View {
  using Value = V;
  const char* name;
  V (*get)(const T& it);
  void (*set)(T& it, V value);
  InFile in_file = {};
};

/// A field of another shape in files, which kAfterWrite and kAfterRead know (base/field_json.h), or of none.
template <class F>
struct ByHand : F {};
template <class F>
ByHand(F) -> ByHand<F>;

template <class F>
inline constexpr bool kIsByHand = false;
template <class F>
inline constexpr bool kIsByHand<ByHand<F>> = true;

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

/// The value of a word; empty: there is none.
template <class E>
[[nodiscard]] std::optional<E> find_word(std::string_view word) {
  for (std::size_t i = 0; i < kWords<E>.size(); ++i) {
    if (word == kWords<E>[i]) return static_cast<E>(i);
  }
  return std::nullopt;
}

/// Words for a refusal: "is tape; known: numa, dram".
template <class E>
[[nodiscard]] std::string refuse_word(std::string_view word) {
  std::string known;
  for (const char* each : kWords<E>) known += text(known.empty() ? "" : ", ", each);
  return text("is ", word, "; known: ", known);
}

/// Throws Error(bad_input) that names the key and the words that are known.
template <class E>
[[nodiscard]] E parse_word(std::string_view word, std::string_view key) {
  if (const auto value = find_word<E>(word)) return *value;
  throw Error(ErrorCode::bad_input, text(key, " ", refuse_word<E>(word)));
}

}  // namespace spillway
