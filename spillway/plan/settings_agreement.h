// Settings that several processes plan with alike.
#pragma once

#include <span>

#include "spillway/plan/settings.h"

namespace spillway::plan {

/// `own` with, for each number of bytes and each rate, the least that any process has. Of times, and of bytes that are
/// taken, it is the largest. Numbers that name something, files that are saved and threads stay those of this process.
/// So each process makes the same plan, for the one that has least. Throws Error(bad_input) where the processes have
/// not as many paths.
[[nodiscard]] EngineSettings agree(const EngineSettings& own, std::span<const EngineSettings> every);

}  // namespace spillway::plan
