// The fields of requests to described machines by name.
#pragma once

#include <array>
#include <tuple>

#include "spillway/base/field.h"
#include "spillway/plan/described.h"
#include "spillway/plan/settings_fields.h"

namespace spillway {

template <>
inline constexpr std::array kWords<plan::Product> = {"forward", "input", "weight"};

template <>
inline constexpr auto kFields<plan::ProductCalls> = std::tuple(Field("product", &plan::ProductCalls::product),
                                                               Field("tokens", &plan::ProductCalls::tokens),
                                                               Field("inner", &plan::ProductCalls::inner),
                                                               Field("outer", &plan::ProductCalls::outer),
                                                               Field("calls", &plan::ProductCalls::calls));

template <>
inline constexpr auto kFields<plan::AttentionCalls> = std::tuple(Field("tokens", &plan::AttentionCalls::tokens),
                                                                 Field("head_size", &plan::AttentionCalls::head_size),
                                                                 Field("operations", &plan::AttentionCalls::operations),
                                                                 Field("backward", &plan::AttentionCalls::backward),
                                                                 Field("calls", &plan::AttentionCalls::calls));

template <>
inline constexpr auto kFields<plan::ElementCalls> = std::tuple(Field("operation", &plan::ElementCalls::operation),
                                                               Field("strided", &plan::ElementCalls::strided),
                                                               Field("bytes", &plan::ElementCalls::bytes),
                                                               Field("calls", &plan::ElementCalls::calls));

template <>
inline constexpr auto kFields<plan::PassOperations> = std::tuple(Field("products", &plan::PassOperations::products),
                                                                 Field("attention", &plan::PassOperations::attention),
                                                                 Field("elements", &plan::PassOperations::elements),
                                                                 Field("calls", &plan::PassOperations::calls));

template <>
inline constexpr auto kFields<plan::TracedPass> = std::tuple(Field("each", &plan::TracedPass::each),
                                                             Field("once", &plan::TracedPass::once));

template <>
inline constexpr auto kFields<plan::FewTokens> = std::tuple(Field("tokens", &plan::FewTokens::tokens),
                                                            Field("passes", &plan::FewTokens::passes),
                                                            Field("most_seconds", &plan::FewTokens::most_seconds));

template <>
inline constexpr auto kFields<plan::Trace> = std::tuple(Field("passes", &plan::Trace::passes),
                                                        Field("bytes", &plan::Trace::bytes),
                                                        Field("per_token", &plan::Trace::per_token),
                                                        Field("slack", &plan::Trace::slack),
                                                        Field("brief_slack", &plan::Trace::brief_slack),
                                                        Field("few", &plan::Trace::few));

template <>
inline constexpr auto kFields<plan::StepWork> =
    std::tuple(Field("sequence", &plan::StepWork::sequence), Field("batch", &plan::StepWork::batch),
               Field("query", &plan::StepWork::query), Field("key", &plan::StepWork::key),
               Field("feed_forward", &plan::StepWork::feed_forward), Field("trace", &plan::StepWork::trace),
               Field("host_bytes", &plan::StepWork::host_bytes), Field("device_bytes", &plan::StepWork::device_bytes));

template <>
inline constexpr auto kFields<plan::MachineRequest> = std::tuple(Field("settings", &plan::MachineRequest::settings),
                                                                 Field("work", &plan::MachineRequest::work),
                                                                 Field("gpu_memory", &plan::MachineRequest::gpu_memory),
                                                                 Field("gpu", &plan::MachineRequest::gpu),
                                                                 Field("simulated", &plan::MachineRequest::simulated));

template <>
inline constexpr auto kFields<plan::DescribedMachine> =
    std::tuple(Field("settings", &plan::DescribedMachine::settings),
               Field("work_per_token", &plan::DescribedMachine::work_per_token),
               Field("attention_seconds", &plan::DescribedMachine::attention_seconds));

}  // namespace spillway
