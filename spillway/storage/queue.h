// Transfers of each direction in order of urgency, handed out piece by piece.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <queue>
#include <tuple>
#include <vector>

#include "spillway/storage/path.h"

namespace spillway::storage {

/// A transfer between its start and its end.
struct Job {
  Transfer transfer;
  std::uint64_t arrival = 0;  ///< order of `add`; unique
  Bytes issued = 0;           ///< handed out so far, from the start of the transfer
  std::uint32_t pending = 0;  ///< pieces handed out and not yet ended
  std::exception_ptr error;   ///< the first
};

/// The path's thread alone uses it. It allocates only when there are more transfers at once than ever before.
class Queue {
 public:
  using Id = std::uint32_t;
  /// One piece of a job: `bytes` of its transfer from `begin` on.
  struct Cut {
    Id job;
    Bytes begin;
    std::uint32_t bytes;
  };

  /// `reserve` transfers at once need no allocation.
  Queue(Bytes piece_size, std::size_t reserve);

  /// Adds a transfer; where it throws std::bad_alloc nothing was added.
  void add(const Transfer& transfer);
  /// Whether `take` has something to hand out.
  [[nodiscard]] bool waiting(Direction direction);
  /// The direction whose next piece is more urgent; both must have something waiting.
  [[nodiscard]] Direction most_urgent() const;
  /// Hands out the next piece of the most urgent job that has any left, and counts it as pending.
  Cut take(Direction direction);
  /// Notes an error, unless there is one, and hands out no more of the job.
  void fail(Id id, std::exception_ptr error);
  /// One pending piece has ended; true when the job has nothing left, pending or to hand out.
  [[nodiscard]] bool end_piece(Id id);
  /// Forgets a job that has ended; its id may be used again.
  void release(Id id);

  [[nodiscard]] Job& operator[](Id id) { return jobs_[id]; }
  [[nodiscard]] Id size() const noexcept { return static_cast<Id>(jobs_.size()); }
  /// Whether that id, below `size`, is of a job that has not been released.
  [[nodiscard]] bool alive(Id id) const noexcept;

 private:
  struct Entry {
    std::uint64_t deadline;
    bool data;   ///< after metadata
    bool write;  ///< after reads
    std::uint64_t arrival;
    Id job;
    bool operator<(const Entry& other) const noexcept {  // std::priority_queue serves the largest
      return std::tie(deadline, data, write, arrival) >
             std::tie(other.deadline, other.data, other.write, other.arrival);
    }
  };
  using Order = std::priority_queue<Entry>;

  Bytes piece_size_;
  std::uint64_t arrivals_ = 0;
  std::vector<Job> jobs_;  ///< by id
  std::vector<Id> free_;
  std::array<Order, 2> orders_;  ///< by direction; may name jobs that have ended: their arrival differs
};

}  // namespace spillway::storage
