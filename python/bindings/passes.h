// Arrays that a block pass hands to the engine.
#pragma once

#include "engine.h"
#include "spillway/base/error.h"

using Anywhere = nb::ndarray<nb::c_contig>;  // where passes compute

/// What a pass hands over, in the memory that it computes in.
template <class T = std::byte, class Any = Anywhere>
T* there(const Engine& engine, const Any& array, const char* what) {
  const auto gpu = engine.gpu();
  const bool fits = gpu ? array.device_type() == nb::device::cuda::value && array.device_id() == *gpu
                        : array.device_type() == nb::device::cpu::value;
  if (fits) return static_cast<T*>(array.data());
  throw spillway::Error(
      spillway::ErrorCode::bad_input,
      spillway::text(what, " lies on device type ", array.device_type(), ", number ", array.device_id(),
                     "; passes compute ", gpu ? spillway::text("on cuda:", *gpu) : "in host memory"));
}

template <class T>
T* there(const Engine& engine, const Anywhere& array, std::size_t count, const char* what) {
  if (array.dtype() != nb::dtype<T>() || array.size() != count) {
    throw spillway::Error(spillway::ErrorCode::bad_input,
                          spillway::text(what, ": ", count, " elements of another type are needed"));
  }
  return there<T>(engine, array, what);
}
