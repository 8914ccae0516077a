// The Errors that a write to a pool ends with when no path is left to take it, and the notice of a retired path.
#pragma once

#include <exception>
#include <span>

#include "spillway/storage/pool.h"

namespace spillway::storage {

/// What a pool could offer when it had to refuse a write.
struct Offer {
  Bytes free = 0;      ///< on paths that can be written
  Bytes capacity = 0;  ///< of these paths
  Bytes needed = 0;    ///< PoolOptions::needed
  Bytes lacking = 0;   ///< to all writes that wait, which nobody makes room for; 0: it is not so
  std::span<const Outage> outages = {};
};

/// The error is io with the errno of the first outage, or does_not_fit when there was none.
[[nodiscard]] std::exception_ptr shortage(const Pool::Request& request, const Offer& offer);
/// The error, io, of a write that waited while the pool was closed.
[[nodiscard]] std::exception_ptr closed(const Pool::Request& request);

/// Whether a write that ended so says that its path is not to be written again.
[[nodiscard]] bool is_outage(const std::exception_ptr& error);
/// The outage that a failed write of that length makes of its path.
[[nodiscard]] Outage outage_of(const std::exception_ptr& error, std::uint32_t path, const std::string& name,
                               Bytes bytes);

}  // namespace spillway::storage
