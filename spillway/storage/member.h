// A path as a member of a pool: its free places and its measured speed.
#pragma once

#include <chrono>
#include <cstdint>

#include "spillway/storage/free_map.h"
#include "spillway/storage/pool.h"
#include "spillway/storage/rate.h"

namespace spillway::storage {

/// The pool's mutex guards it.
class Member {
 public:
  /// `any` is its speed when nothing is known of it.
  Member(PoolPath given, const Speed& any);

  [[nodiscard]] Path& path() const noexcept { return *given_.path; }
  [[nodiscard]] const std::string& name() const noexcept { return given_.name; }
  [[nodiscard]] FreeMap& places() noexcept { return places_; }
  [[nodiscard]] const FreeMap& places() const noexcept { return places_; }
  [[nodiscard]] Bytes capacity() const noexcept { return places_.size() * kExtentAlignment; }
  [[nodiscard]] Speed speed() const noexcept { return rate_.speed(); }
  /// Updates the speed by what the path has moved since the last call, and returns it.
  Speed measure();
  /// These two count the reads that the path was given and has not ended.
  void read_begins(Bytes bytes) noexcept { reading_ += bytes; }
  void read_ends(Bytes bytes) noexcept { reading_ -= bytes; }
  /// In the answer `queued` counts reads alone.
  [[nodiscard]] PathState state() const;

 private:
  PoolPath given_;
  FreeMap places_;
  Rate rate_;
  Bytes reading_ = 0;
  Counters seen_;  ///< at the last `measure`
  std::chrono::steady_clock::time_point seen_at_ = std::chrono::steady_clock::now();
};

}  // namespace spillway::storage
