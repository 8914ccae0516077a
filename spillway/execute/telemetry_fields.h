// The fields of telemetry by name.
#pragma once

#include <tuple>

#include "spillway/base/field.h"
#include "spillway/execute/telemetry.h"
#include "spillway/plan/summary_fields.h"

namespace spillway {

template <>
inline constexpr auto kFields<execute::PathCounters> = std::tuple(
    Field("read", &execute::PathCounters::read), Field("written", &execute::PathCounters::written),
    Field("busy_seconds", &execute::PathCounters::busy_seconds),
    Field("read_seconds", &execute::PathCounters::read_seconds),
    Field("write_seconds", &execute::PathCounters::write_seconds), Field("syncs", &execute::PathCounters::syncs),
    Field("sync_seconds", &execute::PathCounters::sync_seconds), Field("direct", &execute::PathCounters::direct),
    Field("notice", &execute::PathCounters::notice), Field("volume", &execute::PathCounters::volume),
    Field("read_rate", &execute::PathCounters::read_rate), Field("write_rate", &execute::PathCounters::write_rate),
    Field("used", &execute::PathCounters::used));

template <>
inline constexpr auto kFields<execute::PassCounters> = std::tuple(Field("passes", &execute::PassCounters::passes),
                                                                  Field("seconds", &execute::PassCounters::seconds));

template <>
inline constexpr auto kFields<execute::DeviceCounters> = std::tuple(
    Field("name", &execute::DeviceCounters::name), Field("memory", &execute::DeviceCounters::memory),
    Field("to_device", &execute::DeviceCounters::to_device),
    Field("from_device", &execute::DeviceCounters::from_device), Field("notice", &execute::DeviceCounters::notice),
    Field("passes", &execute::DeviceCounters::passes, InFile::write_always()));

template <>
inline constexpr auto kFields<execute::UpdateCounters> = std::tuple(
    Field("elements", &execute::UpdateCounters::elements), Field("seconds", &execute::UpdateCounters::seconds));

template <>
inline constexpr auto kFields<execute::NetworkCounters> =
    std::tuple(Field("sent", &execute::NetworkCounters::sent), Field("received", &execute::NetworkCounters::received),
               Field("between_machines", &execute::NetworkCounters::between_machines));

template <>
inline constexpr auto kFields<execute::PieceCounters> = std::tuple(Field("block", &execute::PieceCounters::block),
                                                                   Field("asked", &execute::PieceCounters::asked),
                                                                   Field("resident", &execute::PieceCounters::resident),
                                                                   Field("planned", &execute::PieceCounters::planned),
                                                                   Field("swaps", &execute::PieceCounters::swaps),
                                                                   Field("pieces", &execute::PieceCounters::pieces));

template <>
inline constexpr auto kFields<execute::Outage> = std::tuple(Field("path", &execute::Outage::path),
                                                            Field("reason", &execute::Outage::reason));

template <>
inline constexpr auto kFields<execute::Counters> =
    std::tuple(Field("arena_bytes", &execute::Counters::arena_bytes),
               Field("stall_seconds", &execute::Counters::stall_seconds), Field("waits", &execute::Counters::waits),
               Field("updates", &execute::Counters::updates), Field("paths", &execute::Counters::paths),
               Field("device", &execute::Counters::device), Field("network", &execute::Counters::network),
               Field("outages", &execute::Counters::outages), Field("pieces", &execute::Counters::pieces));

template <>
inline constexpr auto kFields<execute::TierMemory> = std::tuple(Field("planned", &execute::TierMemory::planned),
                                                                Field("there", &execute::TierMemory::there),
                                                                Field("in_memory", &execute::TierMemory::in_memory));

template <>
inline constexpr auto kFields<execute::BuffersAside> = std::tuple(Field("buffers", &execute::BuffersAside::buffers),
                                                                  Field("elsewhere",
                                                                        &execute::BuffersAside::elsewhere));

template <>
inline constexpr auto kFields<execute::MemoryPlaces> = std::tuple(Field("nodes", &execute::MemoryPlaces::nodes),
                                                                  Field("chunks", &execute::MemoryPlaces::chunks),
                                                                  Field("elsewhere", &execute::MemoryPlaces::elsewhere),
                                                                  Field("aside", &execute::MemoryPlaces::aside,
                                                                        InFile::write_always()));

}  // namespace spillway
