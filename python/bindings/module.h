// What each binding file adds to the module.
#pragma once

#include <nanobind/nanobind.h>

void bind_checkpoint(nanobind::module_& module);
void bind_coding(nanobind::module_& module);
void bind_description(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_engine_answers(nanobind::module_& module);
void bind_interruption(nanobind::module_& module);
void bind_machine(nanobind::module_& module);
void bind_memory(nanobind::module_& module);
void bind_network(nanobind::module_& module);
void bind_optim(nanobind::module_& module);
void bind_optimizer(nanobind::module_& module);
void bind_packed(nanobind::module_& module);
void bind_profile(nanobind::module_& module);
void bind_reduction(nanobind::module_& module);
void bind_settings(nanobind::module_& module);
void bind_timeline(nanobind::module_& module);
