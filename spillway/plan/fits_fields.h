// The fields of plans that fit by name.
#pragma once

#include <tuple>

#include "spillway/base/field.h"
#include "spillway/plan/fits.h"

namespace spillway {

template <>
inline constexpr auto kFields<plan::FitTable> = std::tuple(
    Field("dram_budgets", &plan::FitTable::dram_budgets), Field("sequences", &plan::FitTable::sequences),
    Field("batches", &plan::FitTable::batches), Field("tokens_per_second", &plan::FitTable::tokens_per_second));

template <>
inline constexpr auto kFields<plan::LongerStep> = std::tuple(
    Field("fits", &plan::LongerStep::fits), Field("predicted_step_seconds", &plan::LongerStep::predicted_step_seconds),
    Field("tokens_per_second", &plan::LongerStep::tokens_per_second));

template <>
inline constexpr auto kFields<plan::LargerMemory> = std::tuple(Field("tier", &plan::LargerMemory::tier),
                                                               Field("keep", &plan::LargerMemory::keep),
                                                               Field("spill", &plan::LargerMemory::spill),
                                                               Field("predicted_step_seconds",
                                                                     &plan::LargerMemory::predicted_step_seconds));

template <>
inline constexpr auto kFields<plan::Fits> = std::tuple(Field("longest_sequence", &plan::Fits::longest_sequence),
                                                       Field("fit_table", &plan::Fits::fit_table),
                                                       Field("a_micro_batch_more", &plan::Fits::a_micro_batch_more),
                                                       Field("a_gib_more", &plan::Fits::a_gib_more));

}  // namespace spillway
