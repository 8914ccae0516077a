// The extension module: errors, and one file per room.
#include "module.h"

#include <cstring>

#include "spillway/base/error.h"

namespace {

/// Words of a damaged file or of a file name may be no UTF-8; what is not is shown as \xNN.
void raise(PyObject* type, const char* message) {
  PyObject* words = PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::strlen(message)), "backslashreplace");
  if (words == nullptr) return;  // Python's own error is set
  PyErr_SetObject(type, words);
  Py_DECREF(words);
}

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
    raise(type, error.what());
  }
}

}  // namespace

NB_MODULE(_engine, module) {
  module.doc() = "Spillway's C++ engine.";
  nanobind::set_leak_warnings(false);  // values that a program still holds at its end are no leak
  nanobind::register_exception_translator(translate, nullptr);
  bind_checkpoint(module);
  bind_coding(module);
  bind_description(module);
  bind_profile(module);
  bind_settings(module);
  bind_engine_answers(module);
  bind_engine(module);
  bind_interruption(module);
  bind_machine(module);
  bind_memory(module);
  bind_network(module);
  bind_optim(module);
  bind_optimizer(module);
  bind_packed(module);
  bind_reduction(module);
  bind_timeline(module);
}
