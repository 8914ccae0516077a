#include <algorithm>
#include <cerrno>
#include <initializer_list>

#include "spillway/base/blank.h"
#include "spillway/base/error.h"
#include "spillway/execute/volumes.h"
#include "spillway/journal/record.h"
#include "spillway/storage/superblock.h"
#include "spillway/storage/unreadable.h"
#include "spillway/storage/volume.h"

namespace spillway::execute {
namespace {

/// State of a run's volume at a place.
struct Holding {
  enum class State : std::uint8_t {
    nothing,    ///< no volume of the run
    prepared,   ///< a volume that is not ready, or in which nothing was ever committed
    committed,  ///< one in which something was
    unknown,    ///< one that cannot be read: opening it will say why
  };
  State state = State::nothing;
  std::uint64_t set = 0;
};

/// True if any slot for commits was ever written, or cannot be read. `layout`: of the volume's records; without it the
/// place of the first commit of all is looked at.
bool has_commits(const sys::File& file, Bytes metadata, const journal::MetadataLayout* layout) {
  const bool known = layout != nullptr && layout->bytes() == metadata;
  std::vector<std::byte> slots(known ? layout->commit_slots() * layout->commit_bytes() : std::min(metadata, MiB));
  for (std::uint32_t copy = 0; copy < (known ? journal::kCopies : 1); ++copy) {
    const Bytes at = storage::kSuperblockExtent + (known ? layout->commit(copy, 0) : 0);
    const bool unreadable = !storage::why_unreadable([&] { file.read(slots, at); }).empty();
    if (unreadable || !blank(slots)) return true;
  }
  return false;
}

Holding look_at(const VolumePlace& place, const VolumeSettings& settings, const journal::MetadataLayout* layout) {
  const auto path = place.file(settings.world);
  if (!storage::is_taken(path)) return {};
  const sys::File file(path);
  const auto pair = storage::read_superblocks(file);
  if (pair.state == storage::SuperblockState::foreign) return {};
  if (pair.state != storage::SuperblockState::valid) return {Holding::State::unknown};
  const auto& superblock = pair.superblock;
  if (superblock.run != settings.run || superblock.metadata == 0) return {};
  const bool committed = superblock.ready && has_commits(file, superblock.metadata, layout);
  return {committed ? Holding::State::committed : Holding::State::prepared, superblock.set};
}

/// The places of a run, sorted by what they hold.
class Holdings {
 public:
  Holdings(const VolumeSettings& settings, const journal::MetadataLayout* layout) {
    for (const auto& place : settings.places) found_.push_back({place, look_at(place, settings, layout)});
  }

  [[nodiscard]] bool any(Holding::State state) const {
    return std::ranges::any_of(found_, [=](const Found& it) { return it.holding.state == state; });
  }
  /// True if volumes of that state are of another set than the first in which something was committed.
  [[nodiscard]] bool apart(Holding::State state) const {
    const auto first = std::ranges::find_if(found_, [](const Found& it) { return is(it, Holding::State::committed); });
    return first != found_.end() && std::ranges::any_of(found_, [&](const Found& it) {
             return is(it, state) && it.holding.set != first->holding.set;
           });
  }
  /// "/ssd, /nvme": those of one of these states.
  [[nodiscard]] std::string names(std::initializer_list<Holding::State> states) const {
    std::string out;
    for (const auto& it : found_) {
      if (std::ranges::find(states, it.holding.state) == states.end()) continue;
      out += text(out.empty() ? "" : ", ", it.place.path.string());
    }
    return out;
  }

 private:
  struct Found {
    VolumePlace place;
    Holding holding;
  };
  static bool is(const Found& it, Holding::State state) { return it.holding.state == state; }

  std::vector<Found> found_;
};

/// Answer of holds_run() to the state of all places.
bool whole_run(const VolumeSettings& settings, const Holdings& found) {
  using State = Holding::State;
  if (!found.any(State::committed)) return found.any(State::unknown);
  // Nothing is committed before the volumes of all paths are made. So a volume without commits beside one with them is
  // of the same set and has lost them, or never took any: what the others hold counts. Or it is of another set, by
  // which that of the others was being replaced.
  if (found.apart(State::prepared)) {
    if (settings.overwrite) return false;
    throw Error(ErrorCode::bad_input,
                text("storage: the run was being begun anew when that was interrupted: ",
                     found.names({State::prepared}), " holds nothing yet, and ", found.names({State::committed}),
                     " holds steps of before; begin it anew with --overwrite, or name the paths that it was last on"));
  }
  if (found.apart(State::committed)) {
    throw Error(
        ErrorCode::bad_input,
        text("storage: ", found.names({State::committed}), " hold volumes of this run that were made at different ",
             "times; name the paths that the run was last on, or start anew with --overwrite"));
  }
  if (!found.any(State::nothing)) return true;
  throw Error(ErrorCode::bad_input,
              text("storage: ", found.names({State::committed, State::prepared, State::unknown}),
                   " holds a part of this run, but ", found.names({State::nothing}),
                   " does not; name the paths that the run was started with, in their order. If a "
                   "drive is lost, remove the volumes of the others, and go back to a checkpoint "
                   "that stands alone with --resume_from_checkpoint"));
}

}  // namespace

/// Places are looked at one after the other, and another process of the run may make its volumes meanwhile: what does
/// not belong together is looked at once more.
bool holds_run(const VolumeSettings& settings, const journal::MetadataLayout& layout) {
  try {
    return whole_run(settings, Holdings(settings, &layout));
  } catch (const Error&) {
    return whole_run(settings, Holdings(settings, &layout));
  }
}

void require_nothing_is_lost(const VolumeSettings& settings, const journal::MetadataLayout* layout) {
  if (settings.overwrite) return;
  const Holdings found(settings, layout);
  if (!found.any(Holding::State::committed)) return;
  throw Error(ErrorCode::bad_input,
              text("storage: ", found.names({Holding::State::committed}), " holds finished steps of the run ",
                   settings.run, ", which starting anew would lose; resume it, or start anew with --overwrite"),
              EEXIST);
}

bool without_records(const VolumeSettings& settings) {
  return !settings.places.empty() && std::ranges::all_of(settings.places, [&](const VolumePlace& place) {
    const auto file = place.file(settings.world);
    if (!storage::is_taken(file)) return false;
    const auto pair = storage::read_superblocks(sys::File(file));
    const auto& superblock = pair.superblock;
    return pair.state == storage::SuperblockState::valid && superblock.run == settings.run && superblock.ready &&
           superblock.metadata == 0;
  });
}

}  // namespace spillway::execute
