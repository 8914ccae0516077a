// Plans that may not fit: a refusal for room is no plan.
#pragma once

#include <optional>
#include <string>
#include <type_traits>

#include "spillway/base/error.h"

namespace spillway::plan {

/// The device has no room, however much memory the host has: Error(does_not_fit).
class NoRoomOnDevice : public Error {
 public:
  explicit NoRoomOnDevice(const std::string& message) : Error(ErrorCode::does_not_fit, message) {}
};

/// Result of `make`; none if it throws Error(does_not_fit). `ample` says whether more host memory would change nothing.
/// A refusal makes it false unless the device alone has no room.
template <class Make>
[[nodiscard]] std::optional<std::invoke_result_t<const Make&>> if_it_fits(const Make& make, bool& ample) {
  try {
    return make();
  } catch (const NoRoomOnDevice&) {
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
    ample = false;
    return std::nullopt;
  }
}

template <class Make>
[[nodiscard]] std::optional<std::invoke_result_t<const Make&>> if_it_fits(const Make& make) {
  bool ample = true;
  return if_it_fits(make, ample);
}

}  // namespace spillway::plan
