// The fields of a profile by name.
#pragma once

#include <tuple>

#include "spillway/base/field.h"
#include "spillway/machine/profile.h"

namespace spillway {

template <>
inline constexpr auto kFields<machine::PathProfile> =
    std::tuple(Field("name", &machine::PathProfile::name),
               Field("read_bytes_per_second", &machine::PathProfile::read_bytes_per_second),
               Field("write_bytes_per_second", &machine::PathProfile::write_bytes_per_second),
               Field("mixed_bytes_per_second", &machine::PathProfile::mixed_bytes_per_second),
               Field("cores_at_full_speed", &machine::PathProfile::cores_at_full_speed),
               Field("capacity", &machine::PathProfile::capacity));

template <>
inline constexpr auto kFields<machine::NodeProfile> = std::tuple(
    Field("id", &machine::NodeProfile::id), Field("cxl", &machine::NodeProfile::cxl),
    Field("capacity", &machine::NodeProfile::capacity),
    Field("update_elements_per_second", &machine::NodeProfile::update_elements_per_second),
    Field("to_gpus_bytes_per_second", &machine::NodeProfile::to_gpus_bytes_per_second),
    Field("from_gpus_bytes_per_second", &machine::NodeProfile::from_gpus_bytes_per_second),
    Field("available", &machine::NodeProfile::available), Field("cpus", &machine::NodeProfile::cpus),
    Field("read_bytes_per_second", &machine::NodeProfile::read_bytes_per_second),
    Field("write_bytes_per_second", &machine::NodeProfile::write_bytes_per_second),
    Field("copy_bytes_per_second", &machine::NodeProfile::copy_bytes_per_second),
    Field("update_elements_per_second_thread", &machine::NodeProfile::update_elements_per_second_thread),
    Field("update_threads", &machine::NodeProfile::update_threads), Field("tier", &machine::NodeProfile::tier),
    Field("promised_read_bytes_per_second", &machine::NodeProfile::promised_read_bytes_per_second),
    Field("promised_write_bytes_per_second", &machine::NodeProfile::promised_write_bytes_per_second),
    Field("promised_latency_seconds", &machine::NodeProfile::promised_latency_seconds));

template <>
inline constexpr auto kFields<machine::Saturation> = std::tuple(Field("thread", &machine::Saturation::thread),
                                                                Field("most", &machine::Saturation::most),
                                                                Field("threads", &machine::Saturation::threads));

template <>
inline constexpr auto kFields<machine::NodeAccess> = std::tuple(Field("cpus", &machine::NodeAccess::cpus),
                                                                Field("memory", &machine::NodeAccess::memory),
                                                                Field("distance", &machine::NodeAccess::distance),
                                                                Field("read", &machine::NodeAccess::read),
                                                                Field("write", &machine::NodeAccess::write),
                                                                Field("copy", &machine::NodeAccess::copy),
                                                                Field("update", &machine::NodeAccess::update));

template <>
inline constexpr auto kFields<machine::LayerProfile> = std::tuple(
    Field("hidden", &machine::LayerProfile::hidden), Field("intermediate", &machine::LayerProfile::intermediate),
    Field("tokens", &machine::LayerProfile::tokens),
    Field("flops_per_second", &machine::LayerProfile::flops_per_second),
    Field("fp32_flops_per_second", &machine::LayerProfile::fp32_flops_per_second));

template <>
inline constexpr auto kFields<machine::ProductRate> =
    std::tuple(Field("tokens", &machine::ProductRate::tokens), Field("inner", &machine::ProductRate::inner),
               Field("outer", &machine::ProductRate::outer),
               Field("forward_flops_per_second", &machine::ProductRate::forward_flops_per_second),
               Field("input_flops_per_second", &machine::ProductRate::input_flops_per_second),
               Field("weight_flops_per_second", &machine::ProductRate::weight_flops_per_second));

template <>
inline constexpr auto kFields<machine::AttentionRate> =
    std::tuple(Field("tokens", &machine::AttentionRate::tokens),
               Field("forward_flops_per_second", &machine::AttentionRate::forward_flops_per_second),
               Field("backward_flops_per_second", &machine::AttentionRate::backward_flops_per_second),
               Field("head_size", &machine::AttentionRate::head_size));

template <>
inline constexpr auto kFields<machine::OperationRate> =
    std::tuple(Field("operation", &machine::OperationRate::operation),
               Field("strided", &machine::OperationRate::strided), Field("bytes", &machine::OperationRate::bytes),
               Field("bytes_per_second", &machine::OperationRate::bytes_per_second));

template <>
inline constexpr auto kFields<machine::ComputeProfile> =
    std::tuple(Field("dtype", &machine::ComputeProfile::dtype), Field("products", &machine::ComputeProfile::products),
               Field("attention", &machine::ComputeProfile::attention),
               Field("elementwise_bytes_per_second", &machine::ComputeProfile::elementwise_bytes_per_second),
               Field("operations", &machine::ComputeProfile::operations),
               Field("call_seconds", &machine::ComputeProfile::call_seconds),
               Field("libraries_bytes", &machine::ComputeProfile::libraries_bytes));

template <>
inline constexpr auto kFields<machine::LinkProfile> =
    std::tuple(Field("node", &machine::LinkProfile::node),
               Field("to_gpu_bytes_per_second", &machine::LinkProfile::to_gpu_bytes_per_second),
               Field("from_gpu_bytes_per_second", &machine::LinkProfile::from_gpu_bytes_per_second),
               Field("to_gpu_bytes_per_second_together", &machine::LinkProfile::to_gpu_bytes_per_second_together),
               Field("from_gpu_bytes_per_second_together", &machine::LinkProfile::from_gpu_bytes_per_second_together));

template <>
inline constexpr auto kFields<machine::GpuProfile> = std::tuple(
    Field("name", &machine::GpuProfile::name), Field("memory", &machine::GpuProfile::memory),
    Field("reserved", &machine::GpuProfile::reserved),
    Field("flops_per_second", &machine::GpuProfile::flops_per_second),
    Field("update_elements_per_second", &machine::GpuProfile::update_elements_per_second),
    Field("to_gpu_bytes_per_second", &machine::GpuProfile::to_gpu_bytes_per_second),
    Field("from_gpu_bytes_per_second", &machine::GpuProfile::from_gpu_bytes_per_second),
    Field("peer_bytes_per_second", &machine::GpuProfile::peer_bytes_per_second),
    Field("links", &machine::GpuProfile::links),
    Field("elementwise_bytes_per_second", &machine::GpuProfile::elementwise_bytes_per_second),
    Field("attention_forward_flops_per_second", &machine::GpuProfile::attention_forward_flops_per_second),
    Field("attention_backward_flops_per_second", &machine::GpuProfile::attention_backward_flops_per_second),
    Field("call_seconds", &machine::GpuProfile::call_seconds), Field("shares_dram", &machine::GpuProfile::shares_dram));

template <>
inline constexpr auto kFields<machine::Profile> =
    std::tuple(Field("machine", &machine::Profile::machine), Field("comment", &machine::Profile::comment),
               Field("cores", &machine::Profile::cores), Field("dram_total", &machine::Profile::dram_total),
               Field("dram_available", &machine::Profile::dram_available), Field("nodes", &machine::Profile::nodes),
               Field("gpus", &machine::Profile::gpus), Field("paths", &machine::Profile::paths),
               Field("update_elements_per_second", &machine::Profile::update_elements_per_second),
               Field("update_elements_per_second_all_cores", &machine::Profile::update_elements_per_second_all_cores),
               Field("update_elements_per_second_beside", &machine::Profile::update_elements_per_second_beside),
               Field("compute_share_beside_update", &machine::Profile::compute_share_beside_update),
               Field("copy_bytes_per_second", &machine::Profile::copy_bytes_per_second),
               Field("compute_flops_per_second", &machine::Profile::compute_flops_per_second),
               Field("machines", &machine::Profile::machines), Field("network", &machine::Profile::network),
               Field("network_latency", &machine::Profile::network_latency), Field("access", &machine::Profile::access),
               Field("layers", &machine::Profile::layers), Field("compute", &machine::Profile::compute));

}  // namespace spillway
