// What has no room is no plan.
#pragma once

#include <optional>
#include <type_traits>

#include "spillway/base/error.h"

namespace spillway::plan {

/// What `make` returns; none where it throws Error(does_not_fit).
template <class Make>
[[nodiscard]] std::optional<std::invoke_result_t<const Make&>> if_it_fits(const Make& make) {
  try {
    return make();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
    return std::nullopt;
  }
}

}  // namespace spillway::plan
