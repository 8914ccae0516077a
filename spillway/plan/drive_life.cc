#include "spillway/plan/drive_life.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace spillway::plan {
namespace {

constexpr double kSecondsOfADay = 24 * 60 * 60;

}  // namespace

nlohmann::json drive_life(Bytes written, double seconds, std::optional<Bytes> endurance) {
  if (written == 0 || seconds <= 0) return nullptr;
  const auto rated = endurance.value_or(kUsualEndurance);
  const auto per_day = static_cast<double>(written) / seconds * kSecondsOfADay;
  return {{"rated", rated},
          {"assumed", !endurance},
          {"written_per_day", static_cast<Bytes>(per_day)},
          {"days", static_cast<double>(rated) / per_day}};
}

void add_drive_life(nlohmann::json& plan, const std::string& path, Bytes written, double seconds,
                    std::optional<Bytes> endurance) {
  auto life = drive_life(written, seconds, endurance);
  if (!life.is_null()) plan["drive_life"][path] = std::move(life);
}

}  // namespace spillway::plan
