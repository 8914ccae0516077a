// StripingPolicy and Rate together, on paths that exist in a simulated clock only: does the pool find what the paths
// can do?
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "spillway/storage/rate.h"
#include "spillway/storage/striping_policy.h"

namespace spillway::storage {
namespace {

constexpr std::uint64_t kAllPlaces = 100'000'000;

/// What a drive and its engine do: so many pieces in flight, in order of arrival; served one after the other, or those
/// of each direction one after the other at the same time. `saved`: seconds of its speed that it saves up while it is
/// idle, and then gives at once.
struct SimulatedPath {
  struct Piece {
    Direction direction;
    std::size_t stream;
  };

  Speed speed;
  Rate rate;
  bool duplex;
  std::deque<Piece> waiting;
  unsigned in_flight[2] = {0, 0};              ///< of each direction
  double seen_at[2] = {0, 0};                  ///< when `rate` was last told of busy time
  double idle_from[2] = {0, 0};                ///< when the last piece of a direction ended
  double idle[2] = {0, 0};                     ///< seconds that `rate` was not told of
  double read_free_at = 0, write_free_at = 0;  ///< when all that is in flight is done
  double saved;

  SimulatedPath(const Speed& real, const Speed& expected, bool both, double saves)
      : speed(real), rate(expected), duplex(both), saved(saves) {}

  static constexpr double kBurstSpeed = 4e9;

  /// When a piece that goes in flight now is done.
  double serve(Direction direction, double now, double noise) {
    const bool read = direction == Direction::read;
    double& free_at = read || !duplex ? read_free_at : write_free_at;
    free_at = std::max(free_at, now - saved) + static_cast<double>(MiB) / (read ? speed.read : speed.write) * noise;
    return std::max(free_at, now + static_cast<double>(MiB) / kBurstSpeed);
  }
};

/// Streams with one request outstanding each: an object is read from where it lies (unless `writes_only`), then written
/// anew, piece by piece to the paths that the policy chooses.
class Simulation {
 public:
  struct Setup {
    std::vector<Speed> real;
    std::vector<Speed> expected;
    std::size_t streams = 4;
    std::size_t pieces = 8;  ///< of a request
    std::size_t objects = 64;
    double noise = 0;  ///< a piece takes up to that much more or less of its time
    bool writes_only = false;
    bool duplex = false;
    double saved = 0;
  };

  explicit Simulation(const Setup& setup) : setup_(setup), striping_(setup.real.size()), objects_(setup.objects) {
    for (std::uint32_t i = 0; i < setup.real.size(); ++i) {
      paths_.emplace_back(setup.real[i], setup.expected[i], setup.duplex, setup.saved);
      striping_.set_speed(i, paths_[i].rate.speed());
      striping_.add_places(i, kAllPlaces);
    }
    for (std::vector<std::uint32_t>& object : objects_) {
      for (std::size_t i = 0; i < setup.pieces; ++i) {
        object.push_back(striping_.choose(MiB));
        striping_.end(object.back(), MiB);
      }
    }
    streams_.resize(setup.streams);
    for (std::size_t stream = 0; stream < setup.streams; ++stream) begin(stream);
  }

  void set_speed(std::size_t path, const Speed& speed) { paths_[path].speed = speed; }

  struct Result {
    double rate = 0;              ///< bytes moved per second, both directions
    std::vector<double> written;  ///< share of each path
    [[nodiscard]] double of(double optimum) const { return rate / optimum; }
  };
  /// Goes on until that many pieces have ended.
  Result run(std::size_t pieces) {
    const double begin = now_;
    std::vector<double> written(paths_.size());
    double writes = 0;
    for (std::size_t i = 0; i < pieces; ++i) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      if (event.direction == Direction::write) {
        ++written[event.path];
        ++writes;
      }
      end(event);
    }
    for (double& share : written) share /= writes;
    return {static_cast<double>(pieces * MiB) / (now_ - begin), written};
  }

 private:
  struct Event {
    double time;
    std::uint32_t path;
    Direction direction;
    std::size_t stream;
    bool operator<(const Event& other) const { return time > other.time; }
  };
  struct Stream {
    Direction next = Direction::read;
    std::size_t pending = 0;
    std::size_t object = 0;
  };

  void begin(std::size_t id) {
    Stream& stream = streams_[id];
    const Direction direction = setup_.writes_only ? Direction::write : stream.next;
    if (setup_.writes_only || direction == Direction::read) stream.object = next_object_++ % objects_.size();
    stream.next = direction == Direction::read ? Direction::write : Direction::read;
    stream.pending = setup_.pieces;
    for (std::uint32_t& path : objects_[stream.object]) {
      if (direction == Direction::write) path = striping_.choose(MiB);
      give(path, direction, id);
    }
  }

  void give(std::uint32_t index, Direction direction, std::size_t stream) {
    SimulatedPath& path = paths_[index];
    path.waiting.push_back({direction, stream});
    issue(index);
  }

  void issue(std::uint32_t index) {
    SimulatedPath& path = paths_[index];
    std::uniform_real_distribution<double> noise(1 - setup_.noise, 1 + setup_.noise);
    while (path.in_flight[0] + path.in_flight[1] < kDepth && !path.waiting.empty()) {
      const SimulatedPath::Piece piece = path.waiting.front();
      path.waiting.pop_front();
      const auto way = static_cast<std::size_t>(piece.direction);
      if (path.in_flight[way]++ == 0) {
        path.seen_at[way] = now_;
        path.idle[way] += now_ - path.idle_from[way];
      }
      events_.push({path.serve(piece.direction, now_, noise(random_)), index, piece.direction, piece.stream});
    }
  }

  void end(const Event& event) {
    SimulatedPath& path = paths_[event.path];
    const auto way = static_cast<std::size_t>(event.direction);
    path.rate.add(event.direction, MiB, now_ - path.seen_at[way], std::exchange(path.idle[way], 0));
    path.seen_at[way] = now_;
    if (--path.in_flight[way] == 0) path.idle_from[way] = now_;
    issue(event.path);
    if (event.direction == Direction::write) striping_.end(event.path, MiB);
    striping_.set_speed(event.path, path.rate.speed());
    if (--streams_[event.stream].pending == 0) begin(event.stream);
  }

  static constexpr unsigned kDepth = 16;
  Setup setup_;
  StripingPolicy striping_;
  std::vector<SimulatedPath> paths_;
  std::vector<std::vector<std::uint32_t>> objects_;  ///< the path of each piece
  std::vector<Stream> streams_;
  std::size_t next_object_ = 0;
  std::priority_queue<Event> events_;
  std::mt19937 random_{7};
  double now_ = 0;
};

std::vector<Speed> same_both_ways(const std::vector<double>& rates) {
  std::vector<Speed> speeds;
  for (const double rate : rates) speeds.push_back({rate * 1e6, rate * 1e6});
  return speeds;
}

double sum_of(const std::vector<double>& rates) {
  double sum = 0;
  for (const double rate : rates) sum += rate * 1e6;
  return sum;
}

const std::vector<std::vector<double>> kSets = {
    {400, 400, 200}, {3500, 200}, {3500, 500, 100}, {1000}, {50, 60, 70, 80}};

TEST(PoolSimulation, BandwidthsAdd) {
  for (const auto& rates : kSets) {
    Simulation simulation({.real = same_both_ways(rates), .expected = same_both_ways(rates), .writes_only = true});
    simulation.run(1'000);
    EXPECT_GT(simulation.run(5'000).of(sum_of(rates)), 0.97);
  }
}

TEST(PoolSimulation, BandwidthsAddWhenNothingWasKnown) {
  for (const auto& rates : kSets) {
    const std::vector<Speed> nothing(rates.size());
    for (const bool writes_only : {true, false}) {
      Simulation simulation({.real = same_both_ways(rates), .expected = nothing, .writes_only = writes_only});
      simulation.run(20'000);
      EXPECT_GT(simulation.run(5'000).of(sum_of(rates)), 0.9) << rates.size() << " paths, " << writes_only;
    }
  }
}

/// From `settle` pieces on, every stretch of 500 is near the optimum: settled, and not swinging.
void expect_settled(Simulation& simulation, std::size_t settle, double optimum, double least) {
  simulation.run(settle);
  for (int stretch = 0; stretch < 20; ++stretch) {
    EXPECT_GT(simulation.run(500).of(optimum), least) << "stretch " << stretch;
  }
}

struct PoolKind {
  bool writes_only, duplex;
  std::size_t streams;
  double noise;
  double saved;
};

class PoolSimulationOf : public ::testing::TestWithParam<PoolKind> {
 protected:
  /// Directions that do not hinder each other move twice the bytes.
  [[nodiscard]] static double factor() { return GetParam().duplex && !GetParam().writes_only ? 2 : 1; }
};

TEST_P(PoolSimulationOf, ACutPathIsRelieved) {
  const std::vector<double> rates = {400, 400, 200};
  const auto [writes_only, duplex, streams, noise, saved] = GetParam();
  Simulation simulation({.real = same_both_ways(rates),
                         .expected = same_both_ways(rates),
                         .streams = streams,
                         .noise = noise,
                         .writes_only = writes_only,
                         .duplex = duplex,
                         .saved = saved});
  const std::size_t step = 64 * 8 * (writes_only ? 1 : 2);
  expect_settled(simulation, 2 * step, factor() * 1000e6, 0.85);
  simulation.set_speed(0, {100e6, 100e6});
  expect_settled(simulation, 5 * step, factor() * 700e6, 0.85);
  const auto cut = simulation.run(4 * step);
  EXPECT_GT(cut.of(factor() * 700e6), 0.9);
  EXPECT_NEAR(cut.written[0], 1.0 / 7, 0.02);
  simulation.set_speed(0, {400e6, 400e6});
  expect_settled(simulation, 5 * step, factor() * 1000e6, 0.85);
  EXPECT_GT(simulation.run(4 * step).of(factor() * 1000e6), 0.93);
}

INSTANTIATE_TEST_SUITE_P(Kinds, PoolSimulationOf,
                         ::testing::Values(PoolKind{true, false, 4, 0, 0}, PoolKind{true, false, 16, 0.3, 0},
                                           PoolKind{false, false, 4, 0, 0}, PoolKind{false, false, 16, 0.3, 0},
                                           PoolKind{false, true, 4, 0.3, 0}, PoolKind{false, true, 16, 0, 0},
                                           PoolKind{false, true, 16, 0.3, 0}, PoolKind{false, true, 16, 0.1, 0.1}));

/// A limit that saves up, few objects under way: every path is idle at times, and then far faster than it can keep up.
TEST(PoolSimulation, BurstsAreNotTakenForSpeed) {
  for (const std::size_t streams : {6, 8, 12, 16}) {
    const std::vector<double> rates = {400, 400, 200};
    Simulation simulation({.real = same_both_ways(rates),
                           .expected = {3, Speed{}},
                           .streams = streams,
                           .noise = 0.1,
                           .duplex = true,
                           .saved = 0.1});
    simulation.run(10'000);
    EXPECT_GT(simulation.run(20'000).of(2 * 1000e6), 0.93) << streams << " streams";
  }
}

TEST(PoolSimulation, APathThatStopsForAWhileComesBack) {
  const std::vector<double> rates = {400, 400, 200};
  Simulation simulation({.real = same_both_ways(rates), .expected = same_both_ways(rates)});
  simulation.run(2'000);
  simulation.set_speed(1, {1e6, 1e6});
  simulation.run(20);
  simulation.set_speed(1, {400e6, 400e6});
  expect_settled(simulation, 8'000, 1000e6, 0.9);
}

TEST(PoolSimulation, ReadsCountWhereWritesAreFaster) {
  const std::vector<Speed> speeds = {{500e6, 2000e6}, {1000e6, 1000e6}};  // 400 and 500 for a piece in and out
  Simulation simulation({.real = speeds, .expected = speeds});
  simulation.run(4'000);
  const auto result = simulation.run(8'000);
  EXPECT_NEAR(result.written[0], 4.0 / 9, 0.05);
  EXPECT_GT(result.of(2 * 900e6), 0.9);
}

}  // namespace
}  // namespace spillway::storage
