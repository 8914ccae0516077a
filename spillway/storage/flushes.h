// The flushes of a volume: at most one at a time, for all who had asked when it began.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <vector>

#include "spillway/storage/meter.h"
#include "spillway/storage/path.h"

namespace spillway::storage {

/// One who waits for a flush.
struct FlushRequest {
  Done done;
  void* context;
  std::uint64_t token;
};

/// Tells everybody, and clears the list. Returns how many there were.
std::size_t end_requests(std::vector<FlushRequest>& requests, const std::exception_ptr& error);

/// Says when the ring is to flush, and judges its answer. The path's thread alone uses it.
class Flushes {
 public:
  /// `reserve` requests at once need no allocation. References must outlive it.
  Flushes(const std::filesystem::path& volume, Meter& meter, std::size_t reserve);

  /// Takes requests out of `incoming`; where it throws std::bad_alloc they are still there.
  void take(std::vector<FlushRequest>& incoming);
  /// True: a flush begins for all who wait, and is to be submitted. Requests that come while a flush is under way wait
  /// for the next one: the first says nothing of what completed after it began.
  [[nodiscard]] bool begin();
  /// The ring's answer to the flush. True: it is to be submitted again.
  [[nodiscard]] bool judge(std::int32_t result);
  /// Ends the requests whose flush has ended, or for whom none begins since one has failed. Returns how many.
  std::size_t settle();
  /// Ends all requests with that error, and allocates nothing. Returns how many.
  std::size_t fail(const std::exception_ptr& cause);

  [[nodiscard]] bool in_flight() const noexcept { return in_flight_; }
  /// True if begin() has something to do.
  [[nodiscard]] bool waiting() const noexcept { return !in_flight_ && !waiting_.empty(); }

 private:
  const std::filesystem::path& volume_;
  Meter& meter_;
  std::vector<FlushRequest> waiting_;
  std::vector<FlushRequest> served_;  ///< by the flush under way, or just ended
  bool in_flight_ = false;
  std::optional<std::int32_t> result_;  ///< of the flush that has ended, until it is settled
  std::uint32_t fruitless_ = 0;
  std::exception_ptr failure_;  ///< of the first flush that failed
};

}  // namespace spillway::storage
