#include "spillway/storage/share.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::storage {
namespace {

using Word = std::atomic_ref<std::uint64_t>;

std::uint64_t load(std::uint64_t& word) noexcept {
  return Word(word).load(std::memory_order_seq_cst);
}

void store(std::uint64_t& word, std::uint64_t value) noexcept {
  Word(word).store(value, std::memory_order_seq_cst);
}

std::uint64_t slot_bit(unsigned slot) noexcept {
  return std::uint64_t{1} << slot;
}

/// Calls `pass(slot)` for each bit that is set.
template <class Pass>
void for_each(std::uint64_t slots, Pass&& pass) {
  for (; slots != 0; slots &= slots - 1) pass(static_cast<unsigned>(std::countr_zero(slots)));
}

std::filesystem::path file_of(sys::DeviceId device, const std::filesystem::path& directory) {
  return directory / text("spillway-", sys::user_id(), "-device-", device.major, "-", device.minor);
}

}  // namespace

Share::Share(sys::DeviceId device, ShareOptions options)
    : memory_(file_of(device, options.directory)),
      table_(join(options)),
      slot_(claim_slot()),
      own_(table_.slots[slot_]),
      process_(sys::process_id()) {
  store(own_.process, static_cast<std::uint64_t>(process_));
}

/// A child that was forked has no part in what its parent holds.
Share::~Share() {
  if (process_ == sys::process_id()) vacate(slot_);
}

bool Share::try_acquire(Direction direction, Bytes bytes) noexcept {
  const std::size_t lane = index(direction);
  const Bytes after = held_[lane] + bytes;
  store(own_.lanes[lane].held, after);  // before looking: of two that take at once, at least one sees the other
  const std::uint64_t others = load(table_.header.occupied) & ~slot_bit(slot_);
  if (others == 0 || held_[lane] == 0) return grant(lane, bytes);
  const View view = look(others, lane);
  if (may_hold(after, lane, view)) return grant(lane, bytes);
  if (reap_dead_slots(others, lane)) return try_acquire(direction, bytes);
  return refuse(lane, view);
}

void Share::release(Direction direction, Bytes bytes) noexcept {
  const std::size_t lane = index(direction);
  held_[lane] -= bytes;
  store(own_.lanes[lane].held, held_[lane]);
}

std::vector<int> Share::processes() const {
  std::vector<int> found;
  for_each(load(table_.header.occupied), [&](unsigned slot) {
    if (slot != slot_ && !memory_.locked_elsewhere(kShareSlotLocks + slot)) return;
    found.push_back(static_cast<int>(load(table_.slots[slot].process)));
  });
  return found;
}

/// Leaves the join lock held, for `claim_slot`.
ShareTable& Share::join(const ShareOptions& options) {
  if (!memory_.lock_within(kShareJoinLock, options.patience)) {
    throw Error(ErrorCode::io,
                text(memory_.path().string(), " has been locked for ", options.patience.count(),
                     " ms by another process, which may have been stopped while it began"),
                0, memory_.path().string());
  }
  return map_share_table(memory_, {options.read_budget, options.write_budget});
}

unsigned Share::claim_slot() {
  for (unsigned slot = 0; slot < kShareSlots; ++slot) {
    if (!memory_.try_lock(kShareSlotLocks + slot)) continue;
    clear(slot);
    Word(table_.header.occupied).fetch_or(slot_bit(slot));
    memory_.unlock(kShareJoinLock);
    return slot;
  }
  throw Error(ErrorCode::does_not_fit,
              text(kShareSlots, " processes share this device already (", memory_.path().string(),
                   "), and no more can; end one, or use another device"),
              0, memory_.path().string());
}

Share::View Share::look(std::uint64_t others, std::size_t lane) const noexcept {
  View view;
  for_each(others, [&](unsigned slot) {
    ShareLane& other = table_.slots[slot].lanes[lane];
    const Bytes held = load(other.held);
    const bool wants = load(other.wants) != 0;
    if (held == 0) return;
    const std::uint64_t served = load(other.served);
    view.held[view.active++] = held;
    view.furthest = std::max(view.furthest, served);
    view.one_is_behind |= wants && served < served_[lane];
  });
  return view;
}

bool Share::may_hold(Bytes after, std::size_t lane, const View& view) const noexcept {
  const Bytes all = table_.header.budgets[lane];
  const Bytes part = all / (view.active + 1);
  if (after <= part) return true;
  if (view.one_is_behind) return false;
  Bytes sum = after;
  for (unsigned i = 0; i < view.active; ++i) sum += std::min(view.held[i], part);
  return sum <= all || view.active == 0;
}

bool Share::grant(std::size_t lane, Bytes bytes) noexcept {
  held_[lane] += bytes;
  served_[lane] += bytes;
  store(own_.lanes[lane].served, served_[lane]);
  if (wants_[lane]) want(lane, false);
  return true;
}

/// Nobody is owed more than one budget, so that having been idle, or alone, does not count.
bool Share::refuse(std::size_t lane, const View& view) noexcept {
  store(own_.lanes[lane].held, held_[lane]);
  const Bytes all = table_.header.budgets[lane];
  if (view.furthest > all) served_[lane] = std::max(served_[lane], view.furthest - all);
  store(own_.lanes[lane].served, served_[lane]);
  if (!wants_[lane]) want(lane, true);
  return false;
}

void Share::want(std::size_t lane, bool wants) noexcept {
  wants_[lane] = wants;
  store(own_.lanes[lane].wants, wants ? 1 : 0);
}

/// Asks only after those that hold something and have not moved since the last refusal.
bool Share::reap_dead_slots(std::uint64_t others, std::size_t lane) noexcept {
  bool reaped = false;
  for_each(others, [&](unsigned slot) {
    ShareLane& other = table_.slots[slot].lanes[lane];
    const Bytes held = load(other.held);
    const std::uint64_t now = load(other.served) - held;
    const bool moved = std::exchange(seen_[lane][slot], now) != now;
    if (held == 0 || moved || !memory_.try_lock(kShareSlotLocks + slot)) return;
    vacate(slot);
    memory_.unlock(kShareSlotLocks + slot);
    reaped = true;
  });
  return reaped;
}

/// The caller has the slot's lock.
void Share::vacate(unsigned slot) noexcept {
  clear(slot);
  Word(table_.header.occupied).fetch_and(~slot_bit(slot));
}

void Share::clear(unsigned slot) noexcept {
  for (ShareLane& lane : table_.slots[slot].lanes) {
    store(lane.wants, 0);
    store(lane.held, 0);
    store(lane.served, 0);
  }
  store(table_.slots[slot].process, 0);
}

}  // namespace spillway::storage
