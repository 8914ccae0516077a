// Stand-ins for updates and for the network: updates only count their tiles, and transfers stay under way.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "spillway/execute/update_work.h"
#include "spillway/network/port.h"

namespace spillway::execute::test {

/// Counts the tiles of each chunk.
class Tiles : public UpdateWork {
 public:
  static constexpr int kCount = 3;  ///< of each update

  [[nodiscard]] std::size_t slices(plan::Index) const override { return 0; }
  void save(plan::Index, std::size_t) override {}
  void prepare(plan::Index, bool) override {}
  [[nodiscard]] std::size_t tiles(plan::Index, std::size_t) const override { return kCount; }
  void run(plan::Index chunk, std::size_t, std::size_t, bool) override {
    const std::lock_guard lock(mutex_);
    ++counts_[chunk];
    changed_.notify_all();
  }
  [[nodiscard]] int of(plan::Index chunk) {
    const std::lock_guard lock(mutex_);
    return counts_[chunk];
  }
  void wait_for_one() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !counts_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<plan::Index, int> counts_;
};

/// A port of two processes whose transfers end when the test calls what it is given.
class OpenPort : public network::Port {
 public:
  [[nodiscard]] std::size_t rank() const noexcept override { return 0; }
  [[nodiscard]] std::size_t size() const noexcept override { return 2; }
  void start(std::vector<network::Message>, network::Done done) override { open.push_back(std::move(done)); }

  std::vector<network::Done> open;
};

}  // namespace spillway::execute::test
