#include "spillway/plan/memory_breakdown.h"

#include <array>
#include <functional>
#include <numeric>

#include "spillway/plan/arena_layout.h"

namespace spillway::plan {
namespace {

constexpr std::array kNames = {"weight",  "state",   "grad", "activation",          "window",
                               "staging", "scratch", "undo", "spilled activations", "vision features"};

/// Bytes of every class at a position.
using Held = std::array<std::int64_t, kNames.size()>;

using Counts = std::function<bool(const Buffer&)>;

/// Changes of the held bytes at every position, of buffers that count.
std::vector<Held> changes(const Schedule& schedule, const Counts& counts) {
  std::vector<Held> out(schedule.positions + 2, Held{});
  for (const auto& buffer : schedule.buffers) {
    if (!counts(buffer)) continue;
    const auto kind = static_cast<std::size_t>(buffer.kind);
    const auto bytes = static_cast<std::int64_t>(buffer.bytes);
    buffer.each_use(schedule.positions, [&](std::uint32_t first, std::uint32_t last) {
      out[first][kind] += bytes;
      out[last + 1][kind] -= bytes;
    });
  }
  return out;
}

/// Calls `see` with the bytes of every class at each position.
template <class See>
void walk(const Schedule& schedule, const Counts& counts, See&& see) {
  const auto change = changes(schedule, counts);
  Held now{};
  for (std::uint32_t p = 0; p < schedule.positions; ++p) {
    for (std::size_t k = 0; k < now.size(); ++k) now[k] += change[p][k];
    see(now);
  }
}

std::map<std::string, Bytes> named(const Held& held) {
  std::map<std::string, Bytes> out;
  for (std::size_t k = 0; k < held.size(); ++k) {
    if (held[k] > 0) out[kNames[k]] = static_cast<Bytes>(held[k]);
  }
  return out;
}

}  // namespace

const char* name_of(BufferClass kind) noexcept {
  return kNames[static_cast<std::size_t>(kind)];
}

std::map<std::string, Bytes> memory_breakdown(const Schedule& schedule, Bytes arena, TierKind tier,
                                              std::uint16_t node) {
  Held best{};
  std::int64_t peak = -1;
  const auto counts = [&](const Buffer& buffer) { return buffer.tier == tier && buffer.node == node; };
  walk(schedule, counts, [&](const Held& now) {
    const auto sum = std::accumulate(now.begin(), now.end(), std::int64_t{0});
    if (sum <= peak) return;
    peak = sum;
    best = now;
  });
  auto out = named(best);
  const auto gaps = static_cast<std::int64_t>(arena) - peak;
  if (gaps > 0) out["gaps"] = static_cast<Bytes>(gaps);
  return out;
}

std::map<std::string, Bytes> host_breakdown(const Schedule& schedule, Bytes arena) {
  std::map<std::string, Bytes> out;
  for (std::uint16_t node = 1; node <= last_node(schedule); ++node) {
    const auto bytes = bytes_on(schedule, node);
    arena -= bytes;
    for (const auto& [name, held] : memory_breakdown(schedule, bytes, TierKind::host, node)) out[name] += held;
  }
  for (const auto& [name, held] : memory_breakdown(schedule, arena)) out[name] += held;
  return out;
}

std::vector<std::map<std::string, Bytes>> breakdown_by_position(const Schedule& schedule) {
  std::vector<std::map<std::string, Bytes>> out;
  out.reserve(schedule.positions);
  walk(schedule, &Buffer::on_host, [&](const Held& now) { out.push_back(named(now)); });
  return out;
}

}  // namespace spillway::plan
