// Measures the rates of a profile with the engines that will do the work.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "spillway/kernels/update.h"
#include "spillway/machine/load.h"
#include "spillway/machine/profile.h"
#include "spillway/storage/path.h"

namespace spillway::machine {

/// Least memory that the measurements below take.
inline constexpr Bytes kCalibrationMemory = 16 * MiB;
/// Least area of a volume that calibrate_path takes; a GiB is better (caches in the drive count for less).
inline constexpr Bytes kCalibrationArea = 64 * MiB;

/// Reads alone, writes alone, and both, `seconds` each (on slow paths up to four times that, for as much to be moved)
/// and a quarter of it before, after writing the area once. The path is idle and the area holds nothing of value.
/// `memory` should be registered with the path, as the run's will be; best is 32 MiB (4 transfers of 8 MiB
/// outstanding). With `cores` > 0 both once more while as many threads compute, which tells what these lose to the path
/// and to the system's work for it; with 0 the process's own CPU time has to do. Throws what the path throws;
/// Error(internal) when memory or area are too small.
[[nodiscard]] PathProfile calibrate_path(storage::Path& path, const std::string& name, std::span<std::byte> memory,
                                         Load::Area area, double seconds = 0.5, unsigned cores = 0);

/// What an update is measured for.
struct UpdateKind {
  kernels::UpdateForm form;
  kernels::Optimizer optimizer = kernels::Optimizer::adamw;
};

/// The fields of as many elements as `memory` holds, one behind the other from its start, which is aligned to 16 bytes;
/// whole blocks of codes.
[[nodiscard]] kernels::UpdateSpan update_span(std::span<std::byte> memory, const UpdateKind& kind);

/// Elements per second of the update on the calling thread, over all of `memory`: choose it larger than the CPU's
/// caches.
[[nodiscard]] double calibrate_update(std::span<std::byte> memory, double seconds = 0.5, const UpdateKind& kind = {});

/// Bytes per second copied from one half of `memory` to the other on the calling thread.
[[nodiscard]] double calibrate_copy(std::span<std::byte> memory, double seconds = 0.5);

/// Calls of `work` per second, over at least `seconds` and one call, after one call that is not counted.
[[nodiscard]] double calls_per_second(const std::function<void()>& work, double seconds);

}  // namespace spillway::machine
