// What a pool promises, over both rings.
#include <algorithm>
#include <set>

#include "tests/storage/allocations.h"
#include "tests/storage/pool_fixture.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT

class PoolContract : public ::testing::TestWithParam<const char*> {
 protected:
  static sys::RingFactory ring() {
    return std::string(GetParam()) == "uring" ? sys::RingFactory(sys::make_uring) : sys::make_thread_ring;
  }

  Object object(Bytes bytes) {
    const auto memory = arena_.span().subspan(used_, bytes);
    used_ += bytes;
    return Object(memory);
  }

  sys::Mapping arena_{64 * MiB};
  Bytes used_ = 0;
  PoolParts parts_{{16 * MiB, 16 * MiB, 8 * MiB}, ring()};
  Pool pool_{parts_.members()};
};

TEST_P(PoolContract, ReadsBackWhatWasWritten) {
  for (const Bytes bytes : {4 * KiB, 1 * MiB, 3 * MiB + 8 * KiB, 12 * MiB}) {
    Object one = object(bytes);
    fill(one.memory, bytes);
    one.write(pool_);
    clear(one.memory);
    one.read(pool_);
    EXPECT_TRUE(is_filled(one.memory, bytes));
  }
}

TEST_P(PoolContract, APartCanBeReadAlone) {
  Object one = object(12 * MiB);
  fill(one.memory, 1);
  one.write(pool_);
  const std::vector<std::byte> expected(one.memory.begin() + 5 * MiB, one.memory.begin() + 7 * MiB);
  Object part = object(2 * MiB);
  part.places.assign(one.places.begin() + 5, one.places.begin() + 7);
  part.read(pool_);
  EXPECT_TRUE(std::ranges::equal(part.memory, expected));
}

TEST_P(PoolContract, UsesAllPaths) {
  Object one = object(15 * MiB);
  one.write(pool_);
  for (std::uint32_t path = 0; path < 3; ++path) EXPECT_EQ(one.on(path), 5U) << path;
}

TEST_P(PoolContract, SharesFollowWhatIsExpected) {
  auto members = parts_.members();
  members[0].expected = {400e6, 400e6};
  members[1].expected = {200e6, 0};
  Pool pool(members);  // the third is taken for the mean of the others
  Object one = object(18 * MiB);
  one.write(pool);
  EXPECT_NEAR(static_cast<double>(one.on(0)), 8, 1);
  EXPECT_NEAR(static_cast<double>(one.on(1)), 4, 1);
  EXPECT_NEAR(static_cast<double>(one.on(2)), 6, 1);
  EXPECT_EQ(pool.paths()[2].speed.write, 300e6);
  EXPECT_EQ(pool.paths()[1].speed.write, 200e6);
}

TEST_P(PoolContract, NeighboursInMemoryAreNeighboursOnThePath) {
  Object one = object(12 * MiB);
  one.write(pool_);
  for (std::size_t i = 1; i < one.places.size(); ++i) {
    const Place before = one.places[i - 1], after = one.places[i];
    EXPECT_TRUE(before.path != after.path || after.piece == before.piece + 1) << i;
  }
}

TEST_P(PoolContract, EveryPlaceHasOneOwner) {
  Object one = object(20 * MiB), other = object(20 * MiB);
  one.write(pool_);
  other.write(pool_);
  EXPECT_EQ(pool_.free(), 0U);
  std::set<std::pair<std::uint32_t, std::uint32_t>> places;
  for (const auto* object : {&one, &other}) {
    for (const Place place : object->places) EXPECT_TRUE(places.emplace(place.path, place.piece).second);
  }
  pool_.release(one.places);
  EXPECT_EQ(pool_.free(), 20 * MiB);
}

TEST_P(PoolContract, AWriteWaitsForPlaces) {
  Object full = object(36 * MiB), late = object(8 * MiB);
  full.write(pool_);
  Ends ends;
  late.start(pool_, Direction::write, ends, 1);
  EXPECT_EQ(pool_.waiting(), 8 * MiB);
  EXPECT_TRUE(ends.ended().empty());
  pool_.release(std::span(full.places).first(3));
  EXPECT_TRUE(ends.ended().empty());
  pool_.release(std::span(full.places).subspan(3, 1));
  pool_.drain();
  EXPECT_EQ(pool_.waiting(), 0U);
  EXPECT_EQ(pool_.free(), 0U);
  ASSERT_EQ(ends.ended().size(), 1U);
  ends.raise(0);
}

TEST_P(PoolContract, WaitingWritesAreServedByDeadline) {
  Object full = object(40 * MiB);
  full.write(pool_);
  Object objects[] = {object(2 * MiB), object(3 * MiB), object(1 * MiB), object(2 * MiB)};
  Ends ends;
  const std::uint64_t deadlines[] = {7, 3, 9, 3};
  for (std::size_t i = 0; i < 4; ++i) objects[i].start(pool_, Direction::write, ends, i, deadlines[i]);
  EXPECT_EQ(pool_.waiting(), 8 * MiB);
  std::size_t released = 0;
  const auto release = [&](std::size_t count) {
    pool_.release(std::span(full.places).subspan(released, count));
    released += count;
  };
  release(2);
  EXPECT_EQ(pool_.waiting(), 8 * MiB) << "the small one does not overtake";
  release(1);
  ends.await(1);
  release(2);
  ends.await(2);
  release(2);
  ends.await(3);
  release(1);
  ends.await(4);
  EXPECT_EQ(ends.ended(), (std::vector<std::uint64_t>{1, 3, 0, 2}));
}

TEST_P(PoolContract, AnUrgentWriteOvertakesWaitingOnes) {
  Object full = object(38 * MiB), large = object(4 * MiB), urgent = object(1 * MiB), unhurried = object(1 * MiB);
  full.write(pool_);
  Ends ends;
  large.start(pool_, Direction::write, ends, 0, 5);
  unhurried.start(pool_, Direction::write, ends, 1, 6);
  urgent.start(pool_, Direction::write, ends, 2, 4);
  ends.await(1);
  EXPECT_EQ(ends.ended(), (std::vector<std::uint64_t>{2}));
  EXPECT_EQ(pool_.waiting(), 5 * MiB);
  pool_.release(full.places);
  pool_.drain();
}

TEST_P(PoolContract, AWriteIsPlacedWithRoomForTheOneThatFollows) {
  Object full = object(30 * MiB), first = object(4 * MiB), second = object(2 * MiB), other = object(6 * MiB);
  full.write(pool_);
  Ends ends;
  Pool::Pair pair;
  const auto start = [&](Object& one, std::uint32_t more, bool paired, std::uint64_t deadline) {
    auto request = one.request(Direction::write);
    request.done = &Ends::done;
    request.context = &ends;
    request.more = more;
    request.pair = paired ? &pair : nullptr;
    request.deadline = deadline;
    pool_.start(request);
  };
  start(first, 2, true, 5);
  ends.await(1);
  EXPECT_EQ(pool_.free(), 4 * MiB) << "2 MiB of the 6 that are not in use are kept";
  start(other, 0, false, 1);
  EXPECT_EQ(pool_.waiting(), 6 * MiB);
  start(second, 4, true, 9);
  ends.await(2);
  EXPECT_EQ(pool_.waiting(), 6 * MiB) << "the second half overtakes what is more urgent";
  EXPECT_EQ(pool_.free(), 4 * MiB);
  pool_.release(std::span(full.places).first(3));
  pool_.drain();
  EXPECT_EQ(pool_.free(), 1 * MiB);
}

TEST_P(PoolContract, AWriteWaitsForRoomForBoth) {
  Object full = object(30 * MiB);
  full.write(pool_);
  // Four snapshots of two halves of 3 MiB each, where 10 are free: first halves alone would take 9 of them and wait for
  // each other for ever.
  std::vector<Object> halves;
  for (int i = 0; i < 8; ++i) halves.push_back(object(3 * MiB));
  Ends ends;
  std::vector<Pool::Pair> pairs(4);
  const auto start = [&](std::size_t half) {
    auto request = halves[half].request(Direction::write);
    request.done = &Ends::done;
    request.context = &ends;
    request.token = half;
    request.more = 3;
    request.pair = &pairs[half / 2];
    pool_.start(request);
  };
  for (std::size_t i = 0; i < 4; ++i) start(2 * i);
  ends.await(1);
  EXPECT_EQ(pool_.free(), 4 * MiB);
  EXPECT_EQ(pool_.waiting(), 9 * MiB);
  for (std::size_t i = 0; i < 4; ++i) {
    start(2 * i + 1);
    ends.await(2 * i + 2);
    pool_.release(halves[2 * i].places);
    pool_.release(halves[2 * i + 1].places);
    if (i < 3) ends.await(2 * i + 3);
  }
  EXPECT_EQ(ends.ended(), (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(pool_.free(), 10 * MiB);
}

TEST_P(PoolContract, BothOfAPairMayWait) {
  Object full = object(36 * MiB), other = object(2 * MiB);
  std::vector<Object> halves;
  for (int i = 0; i < 4; ++i) halves.push_back(object(3 * MiB));
  full.write(pool_);
  Ends ends;
  std::vector<Pool::Pair> pairs(2);
  for (std::size_t half = 0; half < 4; ++half) {  // the second halves come while the first ones wait
    auto request = halves[half].request(Direction::write);
    request.done = &Ends::done;
    request.context = &ends;
    request.token = half;
    request.more = 3;
    request.pair = &pairs[half / 2];
    pool_.start(request);
  }
  EXPECT_EQ(pool_.waiting(), 12 * MiB) << "half of a pair was placed where there is no room for both";
  pool_.release(std::span(full.places).first(2));
  ends.await(2);
  EXPECT_EQ(pool_.waiting(), 6 * MiB);
  pool_.release(std::span(full.places).subspan(2, 8));
  ends.await(4);
  EXPECT_EQ(pool_.free(), 2 * MiB) << "places are kept for somebody who has them";
  other.write(pool_);
  EXPECT_EQ(pool_.free(), 0);
}

TEST_P(PoolContract, AGroupKeepsThePlacesOfThoseThatComeLate) {
  Object full = object(30 * MiB), other = object(6 * MiB), early = object(2 * MiB), late = object(3 * MiB);
  full.write(pool_);
  Pool::Group group;
  pool_.expect(group, 5);
  EXPECT_EQ(pool_.free(), 10 * MiB) << "nothing is kept before it is asked for";
  Ends ends;
  const auto start = [&](Object& it, std::uint64_t token, Pool::Group* its) {
    auto request = it.request(Direction::write);
    request.deadline = its == nullptr ? 0 : 1;  // the others are more urgent
    request.done = &Ends::done;
    request.context = &ends;
    request.token = token;
    request.group = its;
    pool_.start(request);
  };
  start(early, 0, &group);
  ends.await(1);
  pool_.reserve(group);
  EXPECT_EQ(pool_.free(), 5 * MiB) << "of ten two are used and three are kept";
  start(other, 1, nullptr);
  EXPECT_EQ(pool_.waiting(), 6 * MiB) << "it has taken places that were kept";
  start(late, 2, &group);
  ends.await(2);
  EXPECT_EQ(pool_.waiting(), 6 * MiB);
  pool_.release(std::span(full.places).first(1));
  ends.await(3);
  EXPECT_EQ(pool_.free(), 0);
}

TEST_P(PoolContract, WhatIsLeftOfAGroupIsForgottenWhenItBeginsAnew) {
  Object full = object(36 * MiB), other = object(4 * MiB);
  full.write(pool_);
  Pool::Group group;
  pool_.expect(group, 4);
  pool_.reserve(group);
  EXPECT_EQ(pool_.free(), 0);
  pool_.expect(group, 4);
  EXPECT_EQ(pool_.free(), 4 * MiB);
  other.write(pool_);
}

TEST_P(PoolContract, ScarcityIsToldAndCanBeAnsweredAtOnce) {
  std::vector<Place> old;
  Pool* owner = nullptr;
  int calls = 0;
  PoolOptions options;
  options.on_scarce = [&] {
    ++calls;
    owner->release(std::exchange(old, {}));
  };
  Pool pool(parts_.members(), options);
  owner = &pool;
  Object full = object(40 * MiB), next = object(16 * MiB);
  full.write(pool);
  EXPECT_EQ(calls, 0);
  old.assign(full.places.begin(), full.places.begin() + 20);
  next.write(pool);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(pool.free(), 4 * MiB);
}

TEST_P(PoolContract, AClosedPoolReadsAndWritesNoMore) {
  Object full = object(40 * MiB), late = object(2 * MiB), later = object(1 * MiB);
  full.write(pool_);
  Ends ends;
  late.start(pool_, Direction::write, ends, 1);
  pool_.close();
  ASSERT_EQ(ends.ended().size(), 1U);
  EXPECT_ERROR(ends.raise(0), ErrorCode::io, "closed while 2.0 MiB waited");
  EXPECT_EQ(pool_.waiting(), 0U);
  full.read(pool_);
  pool_.release(full.places);
  EXPECT_ERROR(later.write(pool_), ErrorCode::io, "closed");
}

TEST_P(PoolContract, AWriteThatWaitsWhenItIsClosedIsToldWhy) {
  Object full = object(40 * MiB), late = object(2 * MiB), later = object(1 * MiB);
  full.write(pool_);
  Ends ends;
  late.start(pool_, Direction::write, ends, 1);
  pool_.close(std::make_exception_ptr(Error(ErrorCode::io, "the records cannot be written", EIO, "path:0")));
  pool_.close();
  ASSERT_EQ(ends.ended().size(), 1U);
  EXPECT_ERROR(ends.raise(0), ErrorCode::io, "the records cannot be written");
  EXPECT_ERROR(later.write(pool_), ErrorCode::io, "the records cannot be written");
}

TEST_P(PoolContract, ClosingEndsWaitingWrites) {
  Object full = object(40 * MiB), late = object(2 * MiB);
  Ends ends;
  {
    Pool pool(parts_.members());
    full.write(pool);
    late.start(pool, Direction::write, ends, 1);
  }
  ASSERT_EQ(ends.ended().size(), 1U);
  EXPECT_ERROR(ends.raise(0), ErrorCode::io, "closed while 2.0 MiB waited");
}

TEST_P(PoolContract, ClosingWaitsForWhatIsUnderWay) {
  Object one = object(20 * MiB);
  Ends ends;
  {
    Pool pool(parts_.members());
    one.start(pool, Direction::write, ends, 1);
  }
  ASSERT_EQ(ends.ended().size(), 1U);
  ends.raise(0);
}

TEST_P(PoolContract, ClaimedPlacesAreNotHandedOut) {
  std::vector<Place> claimed;
  for (std::uint32_t piece = 0; piece < 16; ++piece) claimed.push_back({0, piece});
  claimed.push_back({2, 7});
  for (const Place place : claimed) pool_.claim(place);
  EXPECT_EQ(pool_.free(), 23 * MiB);
  EXPECT_ERROR(pool_.claim({2, 7}), ErrorCode::internal, "in use");
  EXPECT_ERROR(pool_.claim({2, 8}), ErrorCode::internal, "does not exist");
  EXPECT_ERROR(pool_.claim({3, 0}), ErrorCode::internal, "does not exist");
  Object one = object(23 * MiB);
  one.write(pool_);
  EXPECT_EQ(one.on(0), 0U);
  EXPECT_EQ(std::ranges::count(one.places, Place{2, 7}), 0);
  pool_.release(claimed);
  EXPECT_EQ(pool_.free(), 17 * MiB);
}

TEST_P(PoolContract, WhatIsMalformedIsRefused) {
  Object one = object(4 * MiB);
  Ends ends;
  const auto refused = [&](auto change, std::string_view part) {
    auto request = one.request(Direction::write);
    request.done = &Ends::done;
    request.context = &ends;
    change(request);
    EXPECT_ERROR(pool_.start(request), ErrorCode::internal, part);
  };
  using Request = Pool::Request;
  refused([](Request& request) { request.bytes = 0; }, "length");
  refused([](Request& request) { request.bytes += 512; }, "length");
  refused([](Request& request) { request.memory += 512; }, "memory");
  refused([](Request& request) { request.memory = nullptr; }, "memory");
  refused([](Request& request) { request.places = request.places.first(3); }, "one place per MiB");
  refused([](Request& request) { request.done = nullptr; }, "told");
  EXPECT_ERROR(
      {
        auto request = one.request(Direction::write);
        request.done = &Ends::done;
        Pool::Pair pair;
        request.pair = &pair;
        request.more = 37;
        pool_.start(request);
      },
      ErrorCode::does_not_fit, "4.0 MiB");
  refused([](Request& request) { request.direction = Direction::read; }, "where nothing is");
  one.places[0] = {7, 0};
  refused([](Request& request) { request.direction = Direction::read; }, "does not exist");
  EXPECT_ERROR(pool_.release(one.places), ErrorCode::internal, "does not exist");
  one.places[0] = {0, 0};
  EXPECT_ERROR(pool_.release(one.places), ErrorCode::internal, "released");
  EXPECT_TRUE(ends.ended().empty());
  EXPECT_EQ(pool_.free(), 40 * MiB);
}

TEST_P(PoolContract, MoreThanAllPathsHoldIsRefused) {
  Object one = object(41 * MiB);
  EXPECT_ERROR(one.write(pool_, "the snapshot of layer 3"), ErrorCode::does_not_fit,
               "the snapshot of layer 3: 41.0 MiB");
}

TEST_P(PoolContract, NeedsPathsWithCapacity) {
  EXPECT_ERROR(Pool({}), ErrorCode::bad_input, "at least one");
  auto members = parts_.members();
  members[1].capacity = MiB - 1;
  EXPECT_ERROR(Pool{members}, ErrorCode::bad_input, "path:drive1");
}

TEST_P(PoolContract, SaysHowItsPathsStand) {
  Object one = object(9 * MiB);
  one.write(pool_);
  one.read(pool_);
  const auto states = pool_.paths();
  ASSERT_EQ(states.size(), 3U);
  for (std::uint32_t path = 0; path < 3; ++path) {
    EXPECT_EQ(states[path].name, PoolParts::name(path));
    EXPECT_EQ(states[path].capacity, path == 2 ? 8 * MiB : 16 * MiB);
    EXPECT_EQ(states[path].free, states[path].capacity - one.on(path) * MiB);
    EXPECT_EQ(states[path].queued, 0U);
    EXPECT_EQ(states[path].moved.written, one.on(path) * MiB);
    EXPECT_EQ(states[path].moved.read, one.on(path) * MiB);
    EXPECT_TRUE(states[path].writable);
    EXPECT_GT(states[path].speed.read, 0);
  }
  EXPECT_TRUE(pool_.outages().empty());
}

TEST_P(PoolContract, AllocatesNothingInSteadyState) {
  Object objects[] = {object(10 * MiB), object(6 * MiB + 4 * KiB), object(4 * KiB)};
  for (Object& one : objects) one.write(pool_);
  Ends ends;
  const auto round = [&](std::uint64_t token) {
    for (Object& one : objects) pool_.release(one.places);
    for (Object& one : objects) one.start(pool_, Direction::write, ends, token);
    pool_.drain();
    for (Object& one : objects) one.start(pool_, Direction::read, ends, token);
    pool_.drain();
  };
  // The list of ends grows while it is new.
  for (std::uint64_t i = 0; i < 24; ++i) round(i);
  const auto before = allocations();
  for (std::uint64_t i = 0; i < 4; ++i) round(i);
  EXPECT_EQ(allocations(), before);
  EXPECT_EQ(ends.ended().size(), 28U * 6U);
}

INSTANTIATE_TEST_SUITE_P(Rings, PoolContract, ::testing::Values("uring", "threads"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace spillway::storage
