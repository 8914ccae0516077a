// C++ structs as Python sees them: a class whose keyword arguments and attributes are the fields of the struct. The
// names are those of C++, and python/spillway/_engine.pyi shows each class as a dataclass.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

/// A field under its own name.
template <class T, class V>
struct Field {
  using Value = V;
  const char* name;
  V T::*member;

  const V& get(const T& it) const { return it.*member; }
  void set(T& it, V value) const { it.*member = std::move(value); }
};
template <class T, class V>
Field(const char*, V T::*) -> Field<T, V>;

/// A field that Python has as another type: an enumerator as its word.
template <class T, class V>
struct View {
  using Value = V;
  const char* name;
  V (*get)(const T& it);
  void (*set)(T& it, V value);
};

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
