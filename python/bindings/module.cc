// The extension module: errors, and one file per room.
#include "module.h"

#include "spillway/base/error.h"

namespace {

/// Error -> an exception that Python knows; `code` and `errno` travel along.
void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const spillway::Error& error) {
    PyObject* type = PyExc_RuntimeError;
    switch (error.code()) {
      case spillway::ErrorCode::bad_input:
      case spillway::ErrorCode::unsupported:
        type = PyExc_ValueError;
        break;
      case spillway::ErrorCode::does_not_fit:
        type = PyExc_MemoryError;
        break;
      case spillway::ErrorCode::io:
      case spillway::ErrorCode::corrupt:
        type = PyExc_OSError;
        break;
      case spillway::ErrorCode::internal:
        break;
    }
    PyErr_SetString(type, error.what());
  }
}

}  // namespace

NB_MODULE(_engine, module) {
  module.doc() = "Spillway's C++ engine.";
  nanobind::register_exception_translator(translate, nullptr);
  bind_engine(module);
  bind_machine(module);
}
