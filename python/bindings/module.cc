#include <nanobind/nanobind.h>

NB_MODULE(_engine, m) {
  m.doc() = "The C++ engine as Python sees it.";
}
