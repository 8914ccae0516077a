// The parts that spillway::Engine is bound in.
#pragma once

#include <nanobind/ndarray.h>

#include "spillway/engine.h"

namespace nb = nanobind;
using spillway::Engine;
using PyEngine = nb::class_<Engine>;
using EngineFloats = nb::ndarray<float, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
using WithoutGil = nb::call_guard<nb::gil_scoped_release>;

void bind_engine_step(nb::module_& module, PyEngine& engine);
void bind_fused(PyEngine& engine);
void bind_engine_store(nb::module_& module, PyEngine& engine);
