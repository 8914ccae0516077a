#include "spillway/storage/flushes.h"

#include <utility>

#include "spillway/storage/failure.h"
#include "spillway/storage/piece.h"

namespace spillway::storage {

std::size_t end_requests(std::vector<FlushRequest>& requests, const std::exception_ptr& error) {
  const auto count = requests.size();
  for (const auto& request : requests) request.done(request.context, request.token, error);
  requests.clear();
  return count;
}

Flushes::Flushes(const std::filesystem::path& volume, Meter& meter, std::size_t reserve)
    : volume_(volume), meter_(meter) {
  for (auto* requests : {&waiting_, &served_}) requests->reserve(reserve);
}

void Flushes::take(std::vector<FlushRequest>& incoming) {
  waiting_.insert(waiting_.end(), incoming.begin(), incoming.end());
  incoming.clear();
}

bool Flushes::begin() {
  if (in_flight_ || waiting_.empty()) return false;
  served_.swap(waiting_);
  if (failure_) return false;
  in_flight_ = true;
  fruitless_ = 0;
  meter_.begin_sync();
  return true;
}

bool Flushes::judge(std::int32_t result) {
  if (is_interrupted(result) && ++fruitless_ < kMostFruitless) return true;
  result_ = result;
  return false;
}

std::size_t Flushes::settle() {
  if (in_flight_) {
    if (!result_) return 0;
    const std::int32_t result = *std::exchange(result_, std::nullopt);
    in_flight_ = false;
    meter_.end_sync(result >= 0);
    if (result < 0) failure_ = unflushed(volume_, -result);
  }
  return end_requests(served_, failure_);
}

std::size_t Flushes::fail(const std::exception_ptr& cause) {
  return end_requests(served_, cause) + end_requests(waiting_, cause);
}

}  // namespace spillway::storage
