/// Wear of a drive by the writes of a run.
#pragma once

#include <optional>

#include "spillway/base/bytes.h"
#include "spillway/plan/summary.h"

namespace spillway::plan {

/// Bytes that usual drives of 1 TB are rated for: what is supposed where nobody says what a drive is.
inline constexpr Bytes kUsualEndurance = 600'000'000'000'000;

/// How long a drive lasts to which every step of `seconds` writes so many bytes. `endurance`: bytes that may be written
/// in its life; none: a usual drive's are supposed. Nothing if nothing is written, or a step takes no time.
[[nodiscard]] std::optional<DriveLife> drive_life(Bytes written, double seconds, std::optional<Bytes> endurance);

}  // namespace spillway::plan
