// The commit protocol of docs/decisions/0001-durable-storage.md as a small model: abstract paths, places that hold one
// value each, records that are whole or torn. Ten steps with everything that may happen to a run are cut at every
// event; what is recovered is compared with the run that was never interrupted. Then the protocol is broken on purpose,
// one rule at a time, and the same comparison has to notice.
#pragma once

#include <algorithm>
#include <compare>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace spillway::storage::model {

using Hash = std::uint64_t;

inline Hash mix(Hash a, Hash b) {
  Hash h = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
  return h ^ (h >> 31);
}

/// One rule of the protocol that a run breaks.
enum class Fault {
  none,
  commit_before_flush,         ///< the commit is written before the gradients are durable
  record_before_flush,         ///< an image's record is written before its pieces are durable
  record_before_commit,        ///< ... before the step of its version is durable
  free_before_flush,           ///< places are free when the new record is written, not when it is durable
  gradient_free_early,         ///< a gradient is free when the image of its version is written
  image_in_place,              ///< the new image takes the places of the old one
  trusted_slot,                ///< the record is written over the newest durable one
  commit_slot,                 ///< a commit is written over one that replay still needs
  old_generation_counts,       ///< recovery takes records of an abandoned line
  free_before_opening,         ///< a new generation does not make its first commit before it goes on
  write_before_opening,        ///< a new generation writes to places that only visible records made free
  opening_before_flush,        ///< a new generation trusts what a killed process had not flushed
  back_commit_before_records,  ///< going back: the commit first, then the records that name the pinned places
  not_pinned,                  ///< a checkpoint does not keep its places
};

struct Place {
  int path = 0, piece = 0;
  auto operator<=>(const Place&) const = default;
};

/// Generations first to last belong to the line, up to a step.
struct Span {
  int first, last, step;
};

enum class Kind { data, commit, image, gradient };
struct Key {
  Kind kind;
  int object, slot;
  auto operator<=>(const Key&) const = default;
};

/// What a place or a slot holds. A torn one fails its checksum.
struct Cell {
  bool torn = false;
  Hash tag = 0;  ///< of data
  int generation = 0, version = 0;
  std::vector<Place> places;
  bool skipped = false;  ///< from here on: of commits
  Hash rate = 0;
  int previous = 0;  ///< the last step before this one that was not skipped
  int line = 0;      ///< which uninterrupted run this follows
  std::vector<Span> lineage;
};

using Contents = std::map<Key, Cell>;

/// What a write was and what has not been flushed since.
struct Disk {
  Contents durable;
  std::vector<std::pair<Key, Cell>> pending;
};

struct Image {
  int version = -1;
  int generation = 0;
  std::vector<Place> places;
  int slot = 0;
  unsigned dirty = 0;   ///< paths whose flush its pieces wait for
  bool record = false;  ///< its record was written
  unsigned record_dirty = 0;
};

struct Gradient {
  int chunk, version, slot;
  std::vector<Place> places;
};

struct Checkpoint {
  int step, line;
  Cell commit;
  std::vector<Image> images;
};

/// What recovery found.
struct State {
  std::string wrong;  ///< empty: nothing
  int generation = 0, step = -1, line = 0;
  std::vector<Span> lineage;
  std::vector<Image> images;
  std::vector<Gradient> gradients;
  std::map<int, std::pair<int, Cell>> commits;  ///< step -> slot, commit
  Cell newest;
};

struct Setup {
  unsigned seed = 0;
  Fault fault = Fault::none;
  int paths = 1, chunks = 3, steps = 10;
};

}  // namespace spillway::storage::model
