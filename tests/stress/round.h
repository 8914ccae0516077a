// A round: one run from its first step to its last, with all that is done to it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace spillway::stress {

/// How often each thing was done.
using Totals = std::map<std::string, std::uint64_t>;

/// What went wrong, with all that leads there again; empty: nothing. The directory of a round that failed stays.
[[nodiscard]] std::string run_round(std::uint64_t seed, std::uint64_t round, Totals& totals);

}  // namespace spillway::stress
