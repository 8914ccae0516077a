// C++ structs as Python sees them: a class whose keyword arguments and attributes are the fields of the struct. The
// names are those of C++, and python/spillway/_engine.pyi shows each class as a dataclass.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "spillway/base/field.h"

using spillway::Field;

/// True if both have one type and equal attributes.
bool are_alike(nanobind::handle self, nanobind::handle other, const std::vector<const char*>& names);
/// "Type(name=value, ...)".
std::string show(nanobind::handle self, const std::vector<const char*>& names);

/// Binds T with these fields. A struct that another one holds is bound before it. An attribute is a copy: a change
/// inside a list or a struct takes effect when it is assigned to the attribute.
template <class T, class... Fields>
nanobind::class_<T> bind_struct(nanobind::handle scope, const char* name, const char* doc, Fields... fields) {
  nanobind::class_<T> out(scope, name, doc);
  out.def(
      "__init__",
      [fields...](T* self, std::optional<typename Fields::Value>... values) {  // of none the struct has its own default
        T made{};
        ((values ? fields.set(made, std::move(*values)) : void()), ...);
        new (self) T(std::move(made));
      },
      nanobind::kw_only(), (nanobind::arg(fields.name) = nanobind::none())...);
  out.def("__copy__", [](const T& self) { return T(self); });
  out.def("__deepcopy__", [](const T& self, nanobind::handle) { return T(self); });
  (out.def_prop_rw(
       fields.name, [fields](const T& self) -> typename Fields::Value { return fields.get(self); },
       [fields](T& self, typename Fields::Value value) { fields.set(self, std::move(value)); }),
   ...);
  const std::vector names{fields.name...};
  out.def("__eq__", [names](nanobind::handle self, nanobind::handle other) { return are_alike(self, other, names); });
  out.def("__repr__", [names](nanobind::handle self) { return show(self, names); });
  out.attr("__hash__") = nanobind::none();
  return out;
}

/// An enumerator that Python has as its word.
template <class T, class E>
struct WordField {
  using Value = std::string;
  const char* name;
  E T::*member;

  Value get(const T& it) const { return spillway::word_of(it.*member); }
  void set(T& it, const Value& value) const { it.*member = spillway::parse_word<E>(value, name); }
};

/// The same, or None.
template <class T, class E>
struct OptionalWordField {
  using Value = std::optional<std::string>;
  const char* name;
  std::optional<E> T::*member;

  Value get(const T& it) const {
    const auto& value = it.*member;
    return value ? Value(spillway::word_of(*value)) : std::nullopt;
  }
  void set(T& it, const Value& value) const {
    it.*member = value ? std::optional(spillway::parse_word<E>(*value, name)) : std::nullopt;
  }
};

template <class T, class V>
constexpr auto convert_words(const Field<T, V>& field) {
  if constexpr (spillway::kHasWords<V>) {
    return WordField<T, V>{field.name, field.member};
  } else {
    return field;
  }
}
template <class T, class V>
constexpr auto convert_words(const Field<T, std::optional<V>>& field) {
  if constexpr (spillway::kHasWords<V>) {
    return OptionalWordField<T, V>{field.name, field.member};
  } else {
    return field;
  }
}
template <class T, class V>
constexpr auto convert_words(const spillway::View<T, V>& view) {
  return view;
}
template <class F>
constexpr auto convert_words(const spillway::ByHand<F>& field) {
  return convert_words(static_cast<const F&>(field));
}

/// Binds T with spillway::kFields<T>. Such a struct may be sent to another process.
template <class T>
nanobind::class_<T> bind_fields(nanobind::handle scope, const char* name, const char* doc) {
  return std::apply(
      [&](const auto&... field) {
        auto out = bind_struct<T>(scope, name, doc, convert_words(field)...);
        out.def("__getstate__", [](const T& self) {
          return std::apply([&](const auto&... it) { return nanobind::make_tuple(convert_words(it).get(self)...); },
                            spillway::kFields<T>);
        });
        out.def("__setstate__", [](T& self, const nanobind::tuple& state) {
          new (&self) T();
          std::size_t next = 0;
          const auto restore = [&](const auto& it) {
            it.set(self, nanobind::cast<typename std::decay_t<decltype(it)>::Value>(state[next++]));
          };
          spillway::for_each_field<T>([&](const auto& it) { restore(convert_words(it)); });
        });
        return out;
      },
      spillway::kFields<T>);
}
