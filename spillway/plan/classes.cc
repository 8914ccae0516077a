#include "spillway/plan/classes.h"

#include <array>

namespace spillway::plan {
namespace {

constexpr std::array kNames = {"weight", "state", "grad", "activation", "window", "staging", "scratch", "undo"};

/// Bytes of every class at a position.
using Held = std::array<std::int64_t, kNames.size()>;

void add(std::vector<Held>& change, const Buffer& buffer, std::uint32_t first, std::uint32_t last) {
  const auto kind = static_cast<std::size_t>(buffer.kind);
  change[first][kind] += static_cast<std::int64_t>(buffer.bytes);
  change[last + 1][kind] -= static_cast<std::int64_t>(buffer.bytes);
}

/// What begins and ends to be held at every position.
std::vector<Held> changes(const Schedule& schedule) {
  std::vector<Held> out(schedule.positions + 2, Held{});
  for (const auto& buffer : schedule.buffers) {
    if (buffer.whole) {
      add(out, buffer, 0, schedule.positions - 1);
    } else if (buffer.first <= buffer.last) {
      add(out, buffer, buffer.first, buffer.last);
    } else {
      add(out, buffer, buffer.first, schedule.positions - 1);
      add(out, buffer, 0, buffer.last);
    }
  }
  return out;
}

}  // namespace

std::map<std::string, Bytes> classes_of(const Schedule& schedule, Bytes arena) {
  const auto change = changes(schedule);
  Held now{}, best{};
  std::int64_t peak = -1;
  for (std::uint32_t p = 0; p < schedule.positions; ++p) {
    std::int64_t sum = 0;
    for (std::size_t k = 0; k < now.size(); ++k) sum += now[k] += change[p][k];
    if (sum <= peak) continue;
    peak = sum;
    best = now;
  }
  std::map<std::string, Bytes> out;
  for (std::size_t k = 0; k < best.size(); ++k) {
    if (best[k] > 0) out[kNames[k]] = static_cast<Bytes>(best[k]);
  }
  const auto gaps = static_cast<std::int64_t>(arena) - peak;
  if (gaps > 0) out["gaps"] = static_cast<Bytes>(gaps);
  return out;
}

}  // namespace spillway::plan
