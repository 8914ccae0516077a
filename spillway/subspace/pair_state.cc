#include "spillway/subspace/pair_state.h"

#include <utility>

#include "spillway/subspace/bias.h"

namespace spillway::subspace {

void PairState::begin() noexcept {
  taken = false;
  samples = !published;
}

void PairState::open() {
  if (refitted && !first && applied) {
    std::swap(projectors, next);
    ++version;
  }
  refitted = looked = applied = false;
}

void PairState::begin_later(bool anew, std::int64_t updates) {
  record = {.refits = kept.refits + 1,
            .begun = anew || kept.refits == 0 ? static_cast<double>(updates + 1) : kept.begun,
            .missed = record.missed};
  drawn = static_cast<std::uint64_t>(kept.refits);
  refitted = true;
  first = samples = false;
  room = kNoRoom;
}

void PairState::end(bool was_applied) {
  applied = was_applied;
  if (applied) {
    before = std::exchange(kept, record);
  } else {
    record = kept;
  }
}

double PairState::error() const {
  if (published) return kept.missed;
  const Bias bias{.captured = kept.captured, .whole = kept.whole, .samples = static_cast<std::uint64_t>(kept.samples)};
  return bias.error();
}

std::vector<std::span<std::byte>> PairState::list_exchanged(bool sends) {
  if (sends) told = record;
  std::vector<std::span<std::byte>> out{std::as_writable_bytes(std::span(&told, 1))};
  for (auto* side : {&next.p, &next.q}) {
    out.push_back(std::as_writable_bytes(std::span(side->values())));
    if (side->is_scattered()) out.push_back(std::as_writable_bytes(std::span(side->places())));
  }
  return out;
}

void PairState::receive() {
  const bool is_new = told.refits != kept.refits;
  looked = published;
  if (!is_new && !looked) return;  // the first virtual rank had no gradient of it
  record = told;
  if (!is_new) return;
  refitted = true;
  first = samples = false;
}

}  // namespace spillway::subspace
