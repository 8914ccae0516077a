#include "spillway/plan/drive_life.h"

namespace spillway::plan {
namespace {

constexpr double kSecondsOfADay = 24 * 60 * 60;

}  // namespace

std::optional<DriveLife> drive_life(Bytes written, double seconds, std::optional<Bytes> endurance) {
  if (written == 0 || seconds <= 0) return std::nullopt;
  const auto rated = endurance.value_or(kUsualEndurance);
  const auto per_day = static_cast<double>(written) / seconds * kSecondsOfADay;
  return DriveLife{.rated = rated,
                   .assumed = !endurance,
                   .written_per_day = static_cast<Bytes>(per_day),
                   .days = static_cast<double>(rated) / per_day};
}

}  // namespace spillway::plan
