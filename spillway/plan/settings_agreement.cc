#include "spillway/plan/settings_agreement.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <type_traits>

#include "spillway/base/error.h"
#include "spillway/plan/settings_fields.h"

namespace spillway::plan {
namespace {

/// Ends of names whose largest value counts, in all that they hold.
constexpr std::array<std::string_view, 5> kMore = {"process_bytes", "work_bytes", "seconds", "token_bytes", "latency"};
/// Names whose largest value counts: what PyTorch takes of a GPU.
constexpr std::string_view kWork = "work";
/// Names of numbers that name something, and of what nothing depends on that is placed.
constexpr std::array<std::string_view, 7> kOwn = {"id", "node", "near", "stream", "file_systems", "saving", "threads"};

bool wants_most(std::string_view name) {
  return name == kWork || std::ranges::any_of(kMore, [&](const auto& end) { return name.ends_with(end); });
}

/// The value of one field in every process.
template <class T, class V, class Name>
std::vector<V> collect(const std::vector<T>& every, const Name& field) {
  std::vector<V> out;
  for (const auto& each : every) out.push_back(field.get(each));
  return out;
}

template <class T>
void merge(T& own, const std::vector<T>& every, bool most);
template <class T>
void merge(std::vector<T>& own, const std::vector<std::vector<T>>& every, bool most) {
  if (std::ranges::any_of(every, [&](const auto& each) { return each.size() != own.size(); })) return;
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::vector<T> entries;
    for (const auto& each : every) entries.push_back(each[i]);
    merge(own[i], entries, most);
  }
}
/// A value that a process lacks counts for none.
template <class T>
void merge(std::optional<T>& own, const std::vector<std::optional<T>>& every, bool most) {
  std::vector<T> values;
  for (const auto& each : every) {
    if (each) values.push_back(*each);
  }
  if (values.size() < every.size()) {
    own.reset();
  } else if (own) {
    merge(*own, values, most);
  }
}

template <class T>
void merge(T& own, const std::vector<T>& every, bool most) {
  if constexpr (kHasFields<T>) {
    for_each_field<T>([&](const auto& field) {
      if (std::ranges::find(kOwn, std::string_view(field.name)) != kOwn.end()) return;
      using Value = typename std::decay_t<decltype(field)>::Value;
      merge(own.*field.member, collect<T, Value>(every, field), most || wants_most(field.name));
    });
  } else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    own = most ? std::ranges::max(every) : std::ranges::min(every);
  }
}

}  // namespace

EngineSettings agree(const EngineSettings& own, std::span<const EngineSettings> every) {
  std::string counts;
  for (const auto& each : every) counts += text(counts.empty() ? "" : ", ", each.storage.size());
  for (const auto& each : every) {
    if (each.storage.size() == own.storage.size()) continue;
    throw Error(ErrorCode::bad_input,
                text("storage: the processes have [", counts, "] paths, by rank; each needs as many as the others"));
  }
  auto out = own;
  merge(out, {every.begin(), every.end()}, false);
  return out;
}

}  // namespace spillway::plan
