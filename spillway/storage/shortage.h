// The Errors that a write to a pool ends with when no path is left to take it, and the notice of a path taken out.
#pragma once

#include <exception>
#include <span>

#include "spillway/storage/pool.h"

namespace spillway::storage {

/// What a pool could offer when it had to refuse.
struct Offer {
  Bytes free = 0;      ///< on paths that can be written
  Bytes capacity = 0;  ///< of these paths
  Bytes needed = 0;    ///< PoolOptions::needed
  std::span<const Outage> outages = {};
};

/// io with the errno of the first outage, or does_not_fit when there was none.
[[nodiscard]] std::exception_ptr shortage(const Pool::Request& request, const Offer& offer);
/// The pool was closed while the write waited: io.
[[nodiscard]] std::exception_ptr closed(const Pool::Request& request);

/// Whether a write that ended so says that its path is not to be written again.
[[nodiscard]] bool is_outage(const std::exception_ptr& error);
/// Of a write of that length.
[[nodiscard]] Outage outage_of(const std::exception_ptr& error, std::uint32_t path, const std::string& name,
                               Bytes bytes);

}  // namespace spillway::storage
