#include "spillway/execute/read_back.h"

#include <algorithm>
#include <cstring>

#include "spillway/base/error.h"
#include "spillway/execute/names.h"
#include "spillway/execute/tensor_parts.h"
#include "spillway/journal/scrub.h"
#include "spillway/state/convert.h"
#include "spillway/storage/superblock.h"
#include "spillway/storage/volume.h"

namespace spillway::execute {
namespace {

/// The volumes of a run, open for reading; `records`: whether they must have some.
struct Opened {
  Opened(const RunPlan& plan, VolumeSettings& volumes, bool records = true)
      : spec(journal_spec(plan.description, plan.layout, plan::Durability::checkpoint, volumes.run,
                          volumes.places.size())),
        layout(spec) {
    volumes.keep = true;
    if (records && !holds_run(volumes, layout)) {
      std::string where;
      for (const auto& place : volumes.places) where += text(where.empty() ? "" : ", ", place.path.string());
      throw Error(ErrorCode::bad_input,
                  text("storage: ", where.empty() ? "no path" : where, " holds nothing of the run ", volumes.run));
    }
    const std::vector<Bytes> as_they_are(volumes.places.size());
    paths = open_volumes(volumes, as_they_are, records ? layout.bytes() : 0, fingerprint(plan.description, plan.layout),
                         VolumeMode::reopen);
    for (const auto& path : paths) pointers.push_back(path.get());
    media = std::make_unique<journal::PathMedia>(pointers);
    check.emplace(spec, object_sizes(plan.description, plan.layout, spec), capacities_of(paths));
  }

  [[nodiscard]] journal::Recovered recover(const ObjectNames& names) const {
    return journal::recover(
        spec, *media,
        {.name = [&](auto kind, auto object) { return names.of(kind, object); },
         .objection = [&](auto kind, auto object, auto pieces) { return check->objection(kind, object, pieces); }});
  }

  journal::JournalSpec spec;
  journal::MetadataLayout layout;
  std::vector<std::unique_ptr<storage::Path>> paths;
  std::vector<storage::Path*> pointers;
  std::unique_ptr<journal::PathMedia> media;
  std::optional<journal::RecordCheck> check;
};

}  // namespace

ReadBack::ReadBack(const RunPlan& plan, VolumeSettings volumes, unsigned threads,
                   const std::optional<std::filesystem::path>& checkpoint)
    : plan_(plan), team_(std::make_unique<Team>(std::max(1U, threads))) {
  Opened opened(plan, volumes, !checkpoint || !without_records(volumes));
  const ObjectNames names(plan.description, plan.layout);
  if (checkpoint) {
    manifest_ = read_manifest(*checkpoint, opened.layout.identity(), *opened.check);
  } else {
    recovered_ = opened.recover(names);
    if (!recovered_.found) {
      throw Error(ErrorCode::bad_input, "storage: no step of this run is durable there; name a checkpoint");
    }
  }
  paths_ = std::move(opened.paths);
  path_pointers_ = std::move(opened.pointers);
  pool_ = std::make_unique<storage::Pool>(pool_paths(paths_, plan_.rates));
  const Replay::Parts parts{plan_.description, plan_.layout, path_pointers_, *pool_, *team_};
  for (const auto place : recovered_.places) pool_->claim(place);
  if (manifest_) {
    claim(*manifest_);
    replay_.emplace(parts, *manifest_);
  } else {
    replay_.emplace(parts, recovered_);
  }
  const auto rule = plan_.description.rule();
  const auto scratch = round_up(largest_chunk_bytes(rule, plan_.layout), 4096);
  arena_ = memory::Arena(2 * scratch + round_up(replay_->scratch(), 4096));
  stream_ = arena_.span().first(scratch);
  chunk_ = arena_.span().subspan(scratch, scratch);
  replay_memory_ = arena_.span().subspan(2 * scratch);
  describe();
}

void ReadBack::claim(const journal::Manifest& manifest) {
  std::vector<storage::Place> places;
  for (const auto& snapshot : manifest.snapshots) {
    for (const auto& piece : snapshot.pieces) places.push_back(piece.place);
  }
  std::ranges::sort(places);
  places.erase(std::ranges::unique(places).begin(), places.end());
  for (const auto place : places) pool_->claim(place);
}

void ReadBack::describe() {
  found_.take(replay_->commit(), *plan_.description.optimizer);
  found_.chunks = plan_.layout.chunks().size();
  for (std::size_t c = 0; c < found_.chunks; ++c) {
    found_.replayed += replay_->missing(c) > 0 ? 1 : 0;
    found_.steps = std::max(found_.steps, replay_->missing(c));
  }
}

void ReadBack::fetch(std::size_t tensor, std::uint64_t first, std::span<float> values) {
  const auto rule = plan_.description.rule();
  for_parts(plan_.layout, tensor, first, values.size(), [&](const state::Span& span, std::size_t chunk) {
    const auto& it = plan_.layout.chunks()[chunk];
    auto* weight = stream_.data();
    auto* state = weight + weight_bytes(rule, it);
    if (fetched_ != chunk) load(chunk, weight, has_state(it.learning) ? state : nullptr);
    fetched_ = chunk;
    const auto fields = state::chunk_fields(rule.type, it, weight, state);
    state::from_chunk(fields, span.chunk_first, values.subspan(span.tensor_first - first, span.elements));
  });
}

state::ChunkStream ReadBack::stream() {
  fetched_ = ~std::size_t{0};
  return {plan_.layout, plan_.description.rule(), *this, stream_};
}

void ReadBack::load(std::size_t chunk, std::byte* weight, std::byte* state) {
  if (replay_->missing(chunk) == 0) return replay_->load(chunk, weight, state, {});
  auto* own = chunk_.data() + weight_bytes(plan_.description.rule(), plan_.layout.chunks()[chunk]);
  replay_->load(chunk, weight != nullptr ? weight : chunk_.data(), state != nullptr ? state : own, replay_memory_);
}

void ReadBack::store(std::size_t, const std::byte*, const std::byte*) {
  throw Error(ErrorCode::internal, "what was read back is not to be changed");
}

namespace {

class Verification {
 public:
  Verification(const RunPlan& plan, VolumeSettings volumes) : plan_(plan), volumes_(std::move(volumes)) {}

  Verified run(const std::vector<std::filesystem::path>& pinned) {
    look_at_superblocks();
    try {
      Opened opened(plan_, volumes_);
      const ObjectNames names(plan_.description, plan_.layout);
      look_at_records(opened, names);
      read_manifests(opened, pinned);
      read_pieces(opened, names);
    } catch (const Error& error) {  // a volume whose superblocks are both damaged cannot be opened
      if (out_.damage.empty()) throw;
      tell(0, error.path(), 0, 0, error.what());
    }
    return std::move(out_);
  }

 private:
  void tell(std::uint32_t path, std::filesystem::path file, Bytes offset, Bytes bytes, std::string what) {
    out_.damage.push_back({path, std::move(file), offset, bytes, std::move(what)});
  }

  void look_at_superblocks() {
    for (std::uint32_t p = 0; p < volumes_.places.size(); ++p) {
      const auto file = volumes_.places[p].file();
      if (!storage::is_taken(file)) continue;
      const sys::File volume(file);
      const auto pair = storage::read_superblocks(volume);
      out_.bytes += storage::kSuperblockOffsets.size() * storage::kSuperblockBytes;
      if (pair.state == storage::SuperblockState::damaged || pair.state == storage::SuperblockState::foreign) {
        tell(p, file, 0, storage::kSuperblockBytes, "both copies of the superblock");
      } else if (!pair.damage.empty()) {
        tell(p, file, pair.damaged, storage::kSuperblockBytes, text("superblock: ", pair.damage));
      }
    }
  }

  void look_at_records(Opened& opened, const ObjectNames& names) {
    out_.bytes += opened.layout.used() * opened.paths.size();
    try {
      recovered_ = opened.recover(names);
    } catch (const Error& error) {
      tell(0, opened.paths[0]->volume(), storage::kSuperblockExtent, opened.layout.used(), error.what());
      return;
    }
    if (recovered_.found) out_.step = recovered_.newest.step;
    for (const auto& damage : recovered_.damage) {
      tell(damage.path, opened.paths[damage.path]->volume(), storage::kSuperblockExtent + damage.offset, damage.bytes,
           damage.what);
    }
  }

  void read_manifests(const Opened& opened, const std::vector<std::filesystem::path>& pinned) {
    for (const auto& directory : pinned) {
      try {
        manifests_.push_back(read_manifest(directory, opened.layout.identity(), *opened.check));
      } catch (const Error& error) {
        tell(0, directory / kManifestName, 0, 0, error.what());
      }
    }
  }

  void read_pieces(const Opened& opened, const ObjectNames& names) {
    std::vector<journal::ScrubObject> objects;
    for (const auto& snapshot : recovered_.snapshots)
      objects.push_back({journal::ObjectKind::snapshot, &snapshot.stored});
    for (const auto& it : recovered_.gradients) objects.push_back({journal::ObjectKind::gradient, &it.stored});
    for (const auto& manifest : manifests_) {
      for (const auto& snapshot : manifest.snapshots) objects.push_back({journal::ObjectKind::snapshot, &snapshot});
    }
    const auto scrubbed = journal::scrub(opened.pointers, objects);
    out_.bytes += scrubbed.bytes;
    for (const auto& it : scrubbed.damage) {
      const auto& path = *opened.paths[it.piece.place.path];
      const auto offset =
          storage::kSuperblockExtent + path.metadata() + it.piece.place.piece * storage::kExtentAlignment;
      tell(it.piece.place.path, path.volume(), offset, it.piece.bytes,
           text(names.of(it.of.kind, it.of.stored->object, it.piece.part, it.first, it.piece.bytes), " of step ",
                it.of.stored->version));
    }
  }

  const RunPlan& plan_;
  VolumeSettings volumes_;
  journal::Recovered recovered_;
  std::vector<journal::Manifest> manifests_;
  Verified out_;
};

}  // namespace

Verified verify(const RunPlan& plan, VolumeSettings volumes, const std::vector<std::filesystem::path>& pinned) {
  return Verification(plan, std::move(volumes)).run(pinned);
}

}  // namespace spillway::execute
