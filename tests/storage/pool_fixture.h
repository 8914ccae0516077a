// A pool over small paths whose rings a test can spoil.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "spillway/storage/pool.h"
#include "tests/storage/fixture.h"

namespace spillway::storage::testing {

/// One directory and path per capacity given; with a script of faults, unless over a ring of the test's choice.
class PoolParts {
 public:
  explicit PoolParts(const std::vector<Bytes>& capacities, const sys::RingFactory& ring = {}, Bytes metadata = 0) {
    for (std::size_t i = 0; i < capacities.size(); ++i) {
      directories_.push_back(std::make_unique<TemporaryDirectory>());
      faults_.push_back(std::make_shared<sys::Faults>());
      PathOptions options = options_in(directories_.back()->path(), capacities[i]);
      options.name = name(i);
      options.metadata = metadata;
      paths_.push_back(std::make_unique<Path>(options, ring ? ring : sys::faulty(sys::make_ring, faults_.back())));
      members_.push_back({paths_.back().get(), capacities[i], {}, name(i)});
    }
  }

  [[nodiscard]] static std::string name(std::size_t path) { return "drive" + std::to_string(path); }
  [[nodiscard]] const std::vector<PoolPath>& members() const { return members_; }
  [[nodiscard]] sys::Faults& faults(std::size_t path) { return *faults_[path]; }
  [[nodiscard]] Path& path(std::size_t path) { return *paths_[path]; }

  /// The next so many writes to each of a path's places fail.
  void break_writes(std::size_t path, int errno_value, unsigned times = 1'000'000) {
    for (Bytes at = 0; at < members_[path].capacity; at += MiB) {
      faults_[path]->fail(sys::Operation::write, kFirstExtent + at, errno_value, times);
    }
  }

 private:
  std::vector<std::unique_ptr<TemporaryDirectory>> directories_;
  std::vector<std::shared_ptr<sys::Faults>> faults_;
  std::vector<std::unique_ptr<Path>> paths_;
  std::vector<PoolPath> members_;
};

/// Content with its places.
struct Object {
  std::span<std::byte> memory;
  std::vector<Place> places;

  explicit Object(std::span<std::byte> bytes) : memory(bytes), places(ceil_div(bytes.size(), MiB)) {}

  [[nodiscard]] Pool::Request request(Direction direction, std::string_view what = "") {
    Pool::Request request;
    request.direction = direction;
    request.memory = memory.data();
    request.bytes = memory.size();
    request.places = places;
    request.what = what;
    return request;
  }
  void write(Pool& pool, std::string_view what = "") { pool.run(request(Direction::write, what)); }
  void read(Pool& pool, std::string_view what = "") { pool.run(request(Direction::read, what)); }
  /// Starts; the listener hears of the end.
  void start(Pool& pool, Direction direction, class Ends& ends, std::uint64_t token, std::uint64_t deadline = 0);

  [[nodiscard]] std::size_t on(std::uint32_t path) const {
    return static_cast<std::size_t>(std::ranges::count(places, path, &Place::path));
  }
};

/// Collects the ends of requests, and waits for them.
class Ends {
 public:
  static void done(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept {
    auto& self = *static_cast<Ends*>(context);
    const std::lock_guard lock(self.mutex_);
    self.ended_.push_back(token);
    self.errors_.push_back(error);
    self.changed_.notify_all();
  }
  void await(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_.size() >= count; });
  }
  [[nodiscard]] std::vector<std::uint64_t> ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  /// Throws the error of the request that ended as number `index`, where it has one.
  void raise(std::size_t index) const {
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex_);
      error = errors_.at(index);
    }
    if (error) std::rethrow_exception(error);
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> ended_;
  std::vector<std::exception_ptr> errors_;
};

inline void Object::start(Pool& pool, Direction direction, Ends& ends, std::uint64_t token, std::uint64_t deadline) {
  Pool::Request one = request(direction);
  one.done = &Ends::done;
  one.context = &ends;
  one.token = token;
  one.deadline = deadline;
  pool.start(one);
}

}  // namespace spillway::storage::testing
