#include "spillway/device/device.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/device/staged_streams.h"

namespace spillway::device {

namespace {

/// Numbers of all pieces of a range, those at these offsets first.
std::vector<Bytes> piece_order(Bytes bytes, Bytes piece, std::span<const Bytes> first) {
  std::vector<Bytes> out;
  std::vector<bool> taken(ceil_div(bytes, piece));
  const auto take = [&](Bytes number) {
    if (number >= taken.size() || taken[number]) return;
    taken[number] = true;
    out.push_back(number);
  };
  for (const auto offset : first) take(offset / piece);
  for (Bytes number = 0; number < taken.size(); ++number) take(number);
  return out;
}

}  // namespace

Device::Device(Bytes piece) : piece_(piece), staged_(std::make_unique<StagedStreams>(*this)) {}
Device::~Device() = default;

std::span<std::byte> Device::allocate(Bytes bytes) {
  if (!memory_.empty()) throw Error(ErrorCode::internal, "a device's arena is allocated once");
  if (bytes > 0) memory_ = do_allocate(bytes);
  return memory_;
}

bool Device::register_host(std::span<std::byte> range, std::span<const Bytes> first) {
  Bytes refused = 0;
  std::string reason;
  for (const auto number : piece_order(range.size(), piece_, first)) {
    const auto at = number * piece_;
    const auto piece = range.subspan(at, std::min(piece_, range.size() - at));
    auto answer = do_register(piece);
    if (answer.empty()) {
      const std::lock_guard lock(mutex_);
      registered_.emplace(piece.data(), piece.size());
    } else {
      refused += piece.size();
      reason = std::move(answer);
    }
  }
  if (refused == 0) return true;
  const auto of_all = refused < range.size() ? text(" of ", human(range.size())) : std::string();
  notice_ = text(human(refused), of_all, " of host memory could not be registered with ", name(), " (", reason,
                 "); copies of that part pass through staging buffers of ", human(StagingRing::kSlots * kGoodCopy),
                 " for each direction, which takes a thread of the CPUs for each");
  return false;
}

void Device::unregister_host(std::span<std::byte> range) {
  std::vector<std::span<std::byte>> pieces;
  {
    const std::lock_guard lock(mutex_);
    const auto begin = registered_.lower_bound(range.data());
    const auto end = registered_.lower_bound(range.data() + range.size());
    for (auto it = begin; it != end; ++it) pieces.emplace_back(it->first, it->second);
    registered_.erase(begin, end);
  }
  for (const auto& piece : pieces) do_unregister(piece);
}

Device::Part Device::first_part(const std::byte* host, Bytes bytes) const {
  const std::lock_guard lock(mutex_);
  const auto next = registered_.upper_bound(host);
  if (next != registered_.begin()) {
    const auto& [begin, size] = *std::prev(next);
    if (host < begin + size) return {std::min(bytes, static_cast<Bytes>(begin + size - host)), true};
  }
  return {next == registered_.end() ? bytes : std::min(bytes, static_cast<Bytes>(next->first - host)), false};
}

/// A copy ends at the end of a piece: a driver takes a range of one registration alone.
void Device::copy(Stream stream, Direction direction, std::byte* to, const std::byte* from, Bytes bytes) {
  if (bytes == 0) return;
  copied_[static_cast<std::size_t>(direction)].fetch_add(bytes, std::memory_order_relaxed);
  if (!separate()) return issue(stream, direction, to, from, bytes);
  const bool down = direction == Direction::from_device;
  while (bytes > 0) {
    const auto part = first_part(down ? to : from, bytes);
    staged_->copy(stream, {direction, to, from, part.bytes}, part.registered);
    to += part.bytes;
    from += part.bytes;
    bytes -= part.bytes;
  }
}

Stream Device::make_copy_stream() {
  const auto out = make_stream();
  if (separate()) staged_->add_copy_stream(out);
  return out;
}

void Device::record(Event event, Stream stream, const Given& given) {
  staged_->record(event, stream, given);
}
void Device::wait(Stream stream, Event event) {
  staged_->wait(stream, event);
}
bool Device::done(Event event) {
  return staged_->has_ended(event) && do_done(event);
}
void Device::synchronise(Event event) {
  staged_->await(event);
  do_synchronise(event);
}
void Device::synchronise() {
  staged_->await_all();
  do_synchronise();
}

void Device::end_staging() noexcept {
  staged_.reset();
}

}  // namespace spillway::device
