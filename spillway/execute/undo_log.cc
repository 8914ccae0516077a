#include "spillway/execute/undo_log.h"

#include <algorithm>
#include <cstring>

namespace spillway::execute {
namespace {

constexpr Bytes kSlice = 1 * MiB;

}  // namespace

std::byte* UndoLog::at(plan::Index buffer) const noexcept {
  return arena_ + schedule_.buffers[buffer].offset;
}

std::size_t UndoLog::slices(plan::Index chunk) const noexcept {
  return ceil_div(schedule_.buffers[schedule_.early[chunk].undo].bytes, kSlice);
}

UndoLog::Part UndoLog::part(plan::Index chunk, std::size_t slice, int which) const noexcept {
  const auto undo = schedule_.early[chunk].undo;
  const auto all = schedule_.buffers[undo].bytes;
  const auto weight = all - schedule_.buffers[schedule_.groups[chunk].state.buffer].bytes;
  const Bytes first = which == 0 ? 0 : weight, last = which == 0 ? weight : all;
  const auto begin = std::clamp(slice * kSlice, first, last);
  const auto end = std::clamp((slice + 1) * kSlice, first, last);
  const auto& groups = schedule_.groups[chunk];
  const auto& place = which == 0 ? groups.weight : groups.state;
  auto* const live = at(place.buffer) + place.offset;
  return {live + (begin - first), at(undo) + begin, end - begin};
}

void UndoLog::save(plan::Index chunk, std::size_t slice) const noexcept {
  for (const int which : {0, 1}) {
    const auto it = part(chunk, slice, which);
    std::memcpy(it.saved, it.live, it.size);
  }
}

void UndoLog::restore(std::span<const plan::Index> chunks, ThreadPool& thread_pool) const {
  for (const auto chunk : chunks) {
    thread_pool.run(slices(chunk), [&](std::size_t slice) {
      for (const int which : {0, 1}) {
        const auto it = part(chunk, slice, which);
        std::memcpy(it.live, it.saved, it.size);
      }
    });
  }
}

}  // namespace spillway::execute
