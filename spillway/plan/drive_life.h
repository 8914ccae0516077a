/// Wear of a drive by the writes of a run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "spillway/base/bytes.h"

namespace spillway::plan {

/// Bytes that usual drives of 1 TB are rated for: what is supposed where nobody says what a drive is.
inline constexpr Bytes kUsualEndurance = 600'000'000'000'000;

/// How long a drive lasts to which every step of `seconds` writes so many bytes: {"rated": bytes that may be written in
/// its life (`endurance`), "assumed": that is supposed, "written_per_day": bytes, "days": of training}; null when
/// nothing is written, or a step takes no time.
[[nodiscard]] nlohmann::json drive_life(Bytes written, double seconds, std::optional<Bytes> endurance);

/// Tells it of a path in the plan's "drive_life"; nothing where it is null.
void add_drive_life(nlohmann::json& plan, const std::string& path, Bytes written, double seconds,
                    std::optional<Bytes> endurance);

}  // namespace spillway::plan
