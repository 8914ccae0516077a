#include "spillway/storage/member.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::storage {
namespace {

std::uint32_t places_of(const PoolPath& given) {
  const Bytes places = given.path == nullptr ? 0 : given.capacity / kExtentAlignment;
  if (places == 0 || places >= std::numeric_limits<std::uint32_t>::max()) {
    throw Error(ErrorCode::bad_input, text("path:", given.name, " was given a capacity of ", human(given.capacity),
                                           "; it must be 1 MiB to 4095 TiB"));
  }
  return static_cast<std::uint32_t>(places);
}

}  // namespace

Member::Member(PoolPath given, const Speed& any)
    : given_(std::move(given)),
      places_(places_of(given_)),
      rate_(given_.expected, any),
      seen_(given_.path->counters()) {}

Speed Member::measure() {
  const Counters now = given_.path->counters();
  const auto at = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(at - seen_at_).count();
  const auto add = [&](Direction direction, Bytes bytes, double busy) {
    rate_.add(direction, bytes, busy, std::max(seconds - busy, 0.0));
  };
  add(Direction::read, now.read - seen_.read, now.read_seconds - seen_.read_seconds);
  add(Direction::write, now.written - seen_.written, now.write_seconds - seen_.write_seconds);
  seen_ = now;
  seen_at_ = at;
  return speed();
}

PathState Member::state() const {
  PathState state;
  state.name = given_.name;
  state.capacity = capacity();
  state.free = places_.free() * kExtentAlignment;
  state.queued = reading_;
  state.speed = speed();
  state.moved = given_.path->counters();
  return state;
}

}  // namespace spillway::storage
