// The fields of a profile by name, in the order of its file, with the ranges of docs/formats/profile.md.
#pragma once

#include <array>
#include <tuple>

#include "spillway/base/field.h"
#include "spillway/machine/profile.h"

namespace spillway::machine {

inline constexpr double kMostCount = 1 << 20;  ///< of cores, nodes, threads, machines, and sizes of layers
inline constexpr double kMostBytes = 1e18;
inline constexpr double kMostRate = 1e20;      ///< of bytes, elements or operations a second
inline constexpr double kMostTransfer = 1e14;  ///< bytes a second of one link or node
inline constexpr double kMostDistance = 255;

}  // namespace spillway::machine

namespace spillway {

template <>
inline constexpr auto kFields<machine::PathProfile> = std::tuple(
    Field("name", &machine::PathProfile::name, InFile::require().refuse_empty()),
    Field("read_bytes_per_second", &machine::PathProfile::read_bytes_per_second, InFile::require(machine::kMostRate)),
    Field("write_bytes_per_second", &machine::PathProfile::write_bytes_per_second, InFile::require(machine::kMostRate)),
    Field("mixed_bytes_per_second", &machine::PathProfile::mixed_bytes_per_second, InFile::require(machine::kMostRate)),
    Field("cores_at_full_speed", &machine::PathProfile::cores_at_full_speed, InFile::require(machine::kMostCount)),
    Field("capacity", &machine::PathProfile::capacity, InFile::omit_default(machine::kMostBytes)));

template <>
inline constexpr std::array kWords<machine::MemoryKind> = {"dram", "cxl"};

template <>
inline constexpr auto kFields<machine::NodeProfile> = std::tuple(
    Field("id", &machine::NodeProfile::id, InFile::require(machine::kMostCount)),
    Field("kind", &machine::NodeProfile::kind, InFile::require()),
    Field("capacity", &machine::NodeProfile::capacity, InFile::require(machine::kMostBytes).refuse_empty()),
    Field("update_elements_per_second", &machine::NodeProfile::update_elements_per_second,
          InFile::require(machine::kMostRate)),
    Field("to_gpus_bytes_per_second", &machine::NodeProfile::to_gpus_bytes_per_second,
          InFile::write_always(machine::kMostTransfer)),
    Field("from_gpus_bytes_per_second", &machine::NodeProfile::from_gpus_bytes_per_second,
          InFile::write_always(machine::kMostTransfer)),
    Field("available", &machine::NodeProfile::available, InFile::omit_default(machine::kMostBytes)),
    Field("cpus", &machine::NodeProfile::cpus, InFile::omit_default().refuse_empty()),
    Field("read_bytes_per_second", &machine::NodeProfile::read_bytes_per_second,
          InFile::omit_default(machine::kMostTransfer)),
    Field("write_bytes_per_second", &machine::NodeProfile::write_bytes_per_second,
          InFile::omit_default(machine::kMostTransfer)),
    Field("copy_bytes_per_second", &machine::NodeProfile::copy_bytes_per_second,
          InFile::omit_default(machine::kMostTransfer)),
    Field("update_elements_per_second_thread", &machine::NodeProfile::update_elements_per_second_thread,
          InFile::omit_default(machine::kMostRate)),
    Field("update_threads", &machine::NodeProfile::update_threads, InFile::omit_default(machine::kMostCount)),
    Field("tier", &machine::NodeProfile::tier, InFile::omit_default(machine::kMostCount)),
    Field("promised_read_bytes_per_second", &machine::NodeProfile::promised_read_bytes_per_second,
          InFile::omit_default(machine::kMostTransfer)),
    Field("promised_write_bytes_per_second", &machine::NodeProfile::promised_write_bytes_per_second,
          InFile::omit_default(machine::kMostTransfer)),
    Field("promised_latency_seconds", &machine::NodeProfile::promised_latency_seconds, InFile::omit_default(1)));

template <>
inline constexpr auto kFields<machine::Saturation> =
    std::tuple(Field("thread", &machine::Saturation::thread, InFile::require(machine::kMostRate)),
               Field("most", &machine::Saturation::most, InFile::require(machine::kMostRate)),
               Field("threads", &machine::Saturation::threads, InFile::require(machine::kMostCount)));

template <>
inline constexpr auto kFields<machine::NodeAccess> =
    std::tuple(Field("cpus", &machine::NodeAccess::cpus, InFile::require(machine::kMostCount)),
               Field("memory", &machine::NodeAccess::memory, InFile::require(machine::kMostCount)),
               Field("distance", &machine::NodeAccess::distance, InFile::require(machine::kMostDistance)),
               Field("read", &machine::NodeAccess::read, InFile::require()),
               Field("write", &machine::NodeAccess::write, InFile::require()),
               Field("copy", &machine::NodeAccess::copy, InFile::require()),
               Field("update", &machine::NodeAccess::update, InFile::require()));

template <>
inline constexpr auto kFields<machine::LayerProfile> =
    std::tuple(Field("hidden", &machine::LayerProfile::hidden, InFile::require(machine::kMostCount)),
               Field("intermediate", &machine::LayerProfile::intermediate, InFile::require(machine::kMostCount)),
               Field("tokens", &machine::LayerProfile::tokens, InFile::require(machine::kMostBytes)),
               Field("flops_per_second", &machine::LayerProfile::flops_per_second, InFile::require(machine::kMostRate)),
               Field("fp32_flops_per_second", &machine::LayerProfile::fp32_flops_per_second,
                     InFile::write_always(machine::kMostRate)));

template <>
inline constexpr auto kFields<machine::ProductRate> =
    std::tuple(Field("tokens", &machine::ProductRate::tokens, InFile::require(machine::kMostBytes).refuse_empty()),
               Field("inner", &machine::ProductRate::inner, InFile::require(machine::kMostBytes).refuse_empty()),
               Field("outer", &machine::ProductRate::outer, InFile::require(machine::kMostBytes).refuse_empty()),
               Field("forward_flops_per_second", &machine::ProductRate::forward_flops_per_second,
                     InFile::require(machine::kMostRate).refuse_empty()),
               Field("input_flops_per_second", &machine::ProductRate::input_flops_per_second,
                     InFile::require(machine::kMostRate).refuse_empty()),
               Field("weight_flops_per_second", &machine::ProductRate::weight_flops_per_second,
                     InFile::require(machine::kMostRate).refuse_empty()));

template <>
inline constexpr auto kFields<machine::AttentionRate> =
    std::tuple(Field("tokens", &machine::AttentionRate::tokens, InFile::require(machine::kMostBytes).refuse_empty()),
               Field("head_size", &machine::AttentionRate::head_size, InFile::omit_default(machine::kMostBytes)),
               Field("forward_flops_per_second", &machine::AttentionRate::forward_flops_per_second,
                     InFile::require(machine::kMostRate).refuse_empty()),
               Field("backward_flops_per_second", &machine::AttentionRate::backward_flops_per_second,
                     InFile::require(machine::kMostRate).refuse_empty()));

template <>
inline constexpr auto kFields<machine::OperationRate> =
    std::tuple(Field("operation", &machine::OperationRate::operation, InFile::require().refuse_empty()),
               Field("strided", &machine::OperationRate::strided, InFile::require()),
               Field("bytes", &machine::OperationRate::bytes, InFile::require(machine::kMostBytes).refuse_empty()),
               Field("bytes_per_second", &machine::OperationRate::bytes_per_second,
                     InFile::require(machine::kMostTransfer).refuse_empty()));

template <>
inline constexpr auto kFields<machine::ComputeProfile> = std::tuple(
    Field("dtype", &machine::ComputeProfile::dtype, InFile::require().refuse_empty()),
    Field("products", &machine::ComputeProfile::products, InFile::require().refuse_empty()),
    Field("attention", &machine::ComputeProfile::attention, InFile::write_always()),
    Field("elementwise_bytes_per_second", &machine::ComputeProfile::elementwise_bytes_per_second,
          InFile::write_always(machine::kMostTransfer)),
    Field("operations", &machine::ComputeProfile::operations, InFile::omit_default()),
    Field("call_seconds", &machine::ComputeProfile::call_seconds, InFile::omit_default(1)),
    Field("libraries_bytes", &machine::ComputeProfile::libraries_bytes, InFile::omit_default(machine::kMostBytes)));

template <>
inline constexpr auto kFields<machine::LinkProfile> =
    std::tuple(Field("node", &machine::LinkProfile::node, InFile::require(machine::kMostCount)),
               Field("to_gpu_bytes_per_second", &machine::LinkProfile::to_gpu_bytes_per_second,
                     InFile::require(machine::kMostTransfer)),
               Field("from_gpu_bytes_per_second", &machine::LinkProfile::from_gpu_bytes_per_second,
                     InFile::require(machine::kMostTransfer)),
               Field("to_gpu_bytes_per_second_together", &machine::LinkProfile::to_gpu_bytes_per_second_together,
                     InFile::require(machine::kMostTransfer)),
               Field("from_gpu_bytes_per_second_together", &machine::LinkProfile::from_gpu_bytes_per_second_together,
                     InFile::require(machine::kMostTransfer)));

template <>
inline constexpr auto kFields<machine::GpuProfile> =
    std::tuple(Field("name", &machine::GpuProfile::name, InFile::require().refuse_empty()),
               Field("memory", &machine::GpuProfile::memory, InFile::require(machine::kMostBytes)),
               Field("reserved", &machine::GpuProfile::reserved, InFile::write_always(machine::kMostBytes)),
               Field("flops_per_second", &machine::GpuProfile::flops_per_second,
                     InFile::require(machine::kMostRate).refuse_empty()),
               Field("update_elements_per_second", &machine::GpuProfile::update_elements_per_second,
                     InFile::write_always(machine::kMostRate)),
               Field("to_gpu_bytes_per_second", &machine::GpuProfile::to_gpu_bytes_per_second,
                     InFile::require(machine::kMostTransfer).refuse_empty()),
               Field("from_gpu_bytes_per_second", &machine::GpuProfile::from_gpu_bytes_per_second,
                     InFile::require(machine::kMostTransfer).refuse_empty()),
               Field("peer_bytes_per_second", &machine::GpuProfile::peer_bytes_per_second,
                     InFile::write_always(machine::kMostTransfer)),
               Field("elementwise_bytes_per_second", &machine::GpuProfile::elementwise_bytes_per_second,
                     InFile::omit_default(machine::kMostTransfer)),
               Field("attention_forward_flops_per_second", &machine::GpuProfile::attention_forward_flops_per_second,
                     InFile::omit_default(machine::kMostRate)),
               Field("attention_backward_flops_per_second", &machine::GpuProfile::attention_backward_flops_per_second,
                     InFile::omit_default(machine::kMostRate)),
               Field("call_seconds", &machine::GpuProfile::call_seconds, InFile::omit_default(1)),
               Field("shares_dram", &machine::GpuProfile::shares_dram, InFile::omit_default()),
               Field("links", &machine::GpuProfile::links, InFile::omit_default()));

template <>
inline constexpr auto kFields<machine::Profile> = std::tuple(
    Field("machine", &machine::Profile::machine, InFile::omit_default().refuse_empty()),
    Field("comment", &machine::Profile::comment, InFile::omit_default()),
    Field("cores", &machine::Profile::cores, InFile::require(machine::kMostCount).refuse_empty()),
    Field("dram_total", &machine::Profile::dram_total, InFile::require(machine::kMostBytes).refuse_empty()),
    Field("dram_available", &machine::Profile::dram_available, InFile::require(machine::kMostBytes)),
    Field("nodes", &machine::Profile::nodes, InFile::write_always()),
    Field("gpus", &machine::Profile::gpus, InFile::write_always()),
    Field("paths", &machine::Profile::paths, InFile::require()),
    Field("update_elements_per_second", &machine::Profile::update_elements_per_second,
          InFile::require(machine::kMostRate)),
    Field("update_elements_per_second_all_cores", &machine::Profile::update_elements_per_second_all_cores,
          InFile::omit_default(machine::kMostRate)),
    Field("update_elements_per_second_beside", &machine::Profile::update_elements_per_second_beside,
          InFile::omit_default(machine::kMostRate)),
    Field("compute_share_beside_update", &machine::Profile::compute_share_beside_update, InFile::omit_default(1)),
    Field("copy_bytes_per_second", &machine::Profile::copy_bytes_per_second, InFile::require(machine::kMostRate)),
    Field("compute_flops_per_second", &machine::Profile::compute_flops_per_second, InFile::require(machine::kMostRate)),
    Field("machines", &machine::Profile::machines, InFile::omit_default(machine::kMostCount)),
    Field("network", &machine::Profile::network, InFile::omit_default(machine::kMostRate)),
    Field("network_latency", &machine::Profile::network_latency, InFile::omit_default(1)),
    Field("access", &machine::Profile::access, InFile::omit_default()),
    Field("layers", &machine::Profile::layers, InFile::omit_default()),
    Field("compute", &machine::Profile::compute, InFile::omit_default()));

}  // namespace spillway
