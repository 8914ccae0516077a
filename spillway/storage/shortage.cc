#include "spillway/storage/shortage.h"

#include "spillway/base/error.h"

namespace spillway::storage {
namespace {

std::string_view name_of(const Pool::Request& request) {
  return request.what.empty() ? "a write" : request.what;
}

std::string list(std::span<const Outage> outages) {
  std::string out;
  for (const Outage& outage : outages) out += text(out.empty() ? " (" : "; ", outage.reason);
  return out.empty() ? out : out + ")";
}

}  // namespace

std::exception_ptr shortage(const Pool::Request& request, const Offer& offer) {
  const std::string need =
      offer.needed > offer.capacity ? text(", and ", human(offer.needed), " must be held at once") : std::string();
  const std::string lack =
      offer.lacking > 0
          ? text(", and ", human(offer.lacking), " more are lacking to what waits, for which nothing will be released")
          : std::string();
  std::string message =
      text(name_of(request), ": ", human(request.bytes), " were to be written, ", human(offer.free),
           " are free on the storage paths that can be written, which hold ", human(offer.capacity), " in all", need,
           lack, list(offer.outages), ". Give another storage directory, or a larger capacity to those there are");
  if (offer.outages.empty()) return std::make_exception_ptr(Error(ErrorCode::does_not_fit, std::move(message)));
  const Outage& first = offer.outages.front();
  return std::make_exception_ptr(Error(ErrorCode::io, std::move(message), first.errno_value, "path:" + first.name));
}

std::exception_ptr closed(const Pool::Request& request) {
  return std::make_exception_ptr(Error(
      ErrorCode::io, text(name_of(request), ": the storage paths were closed while ", human(request.bytes),
                          " waited for free places; wait for writes to end, or release places, before closing them")));
}

bool is_outage(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& failure) {
    return failure.code() == ErrorCode::io;
  } catch (...) {
    return false;
  }
}

Outage outage_of(const std::exception_ptr& error, std::uint32_t path, const std::string& name, Bytes bytes) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& failure) {
    return {path, name, failure.errno_value(), bytes,
            text("path:", name, " gets no more writes, what it holds is still read, after a write of ", human(bytes),
                 " failed: ", failure.what())};
  }
}

}  // namespace spillway::storage
