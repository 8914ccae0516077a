// "fit_table" of plan.json, of this machine's plan and of another's.
#pragma once

#include <nlohmann/json.hpp>

#include "spillway/plan/fits.h"

namespace spillway::plan {

/// {"dram_budgets", "sequences", "batches", "tokens_per_second"}.
[[nodiscard]] nlohmann::json fits_json(const FitTable& table);

}  // namespace spillway::plan
