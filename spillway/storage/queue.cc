#include "spillway/storage/queue.h"

#include <algorithm>
#include <utility>

namespace spillway::storage {
namespace {

/// The arrival of free entries; no job has it.
constexpr std::uint64_t kNoArrival = 0;

template <class T>
std::vector<T> reserved(std::size_t count) {
  std::vector<T> out;
  out.reserve(count);
  return out;
}

}  // namespace

Queue::Queue(Bytes piece_size, std::size_t reserve)
    : piece_size_(piece_size),
      jobs_(reserve),
      free_(reserved<Id>(reserve)),
      orders_({Order({}, reserved<Entry>(reserve)), Order({}, reserved<Entry>(reserve))}) {
  for (std::size_t id = reserve; id > 0; --id) free_.push_back(static_cast<Id>(id - 1));
}

void Queue::add(const Transfer& transfer) {
  if (free_.empty()) {
    free_.reserve(jobs_.size() + 1);  // so that `release` never allocates
    jobs_.emplace_back();
    free_.push_back(static_cast<Id>(jobs_.size() - 1));
  }
  const Id id = free_.back();
  const bool write = transfer.direction == Direction::write;
  orders_[index(transfer.direction)].push({transfer.deadline, transfer.area == Area::data, write, ++arrivals_, id});
  free_.pop_back();
  jobs_[id] = Job{transfer, arrivals_, 0, 0, nullptr};
}

bool Queue::waiting(Direction direction) {
  Order& order = orders_[index(direction)];
  while (!order.empty()) {
    const Entry& top = order.top();
    const Job& job = jobs_[top.job];
    if (job.arrival == top.arrival && job.issued < job.transfer.bytes) return true;
    order.pop();
  }
  return false;
}

Direction Queue::most_urgent() const {
  return orders_[0].top() < orders_[1].top() ? Direction::write : Direction::read;
}

Queue::Cut Queue::take(Direction direction) {
  const Id id = orders_[index(direction)].top().job;
  Job& job = jobs_[id];
  const Bytes bytes = std::min(piece_size_, job.transfer.bytes - job.issued);
  const Cut cut{id, job.issued, static_cast<std::uint32_t>(bytes)};
  job.issued += bytes;
  ++job.pending;
  return cut;
}

void Queue::fail(Id id, std::exception_ptr error) {
  Job& job = jobs_[id];
  if (!job.error) job.error = std::move(error);
  job.issued = job.transfer.bytes;
}

bool Queue::end_piece(Id id) {
  Job& job = jobs_[id];
  return --job.pending == 0 && job.issued == job.transfer.bytes;
}

void Queue::release(Id id) {
  jobs_[id] = Job{};
  free_.push_back(id);
}

bool Queue::alive(Id id) const noexcept {
  return jobs_[id].arrival != kNoArrival;
}

}  // namespace spillway::storage
