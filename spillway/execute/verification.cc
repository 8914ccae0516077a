#include "spillway/execute/verification.h"

#include <utility>

#include "spillway/base/error.h"
#include "spillway/execute/manifest_file.h"
#include "spillway/execute/read_only.h"
#include "spillway/journal/pinned_check.h"
#include "spillway/journal/scrub.h"
#include "spillway/storage/superblock.h"
#include "spillway/storage/volume.h"

namespace spillway::execute {
namespace {

class Verifier {
 public:
  Verifier(const RunPlan& plan, VolumeSettings volumes) : plan_(plan), volumes_(std::move(volumes)) {}

  Verification run(const std::vector<std::filesystem::path>& pinned) {
    look_at_superblocks();
    try {
      const ReadOnly opened(plan_, volumes_);
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
    out_.damage.push_back({text("path:", path), std::move(file), offset, bytes, std::move(what)});
  }

  void look_at_superblocks() {
    for (std::uint32_t p = 0; p < volumes_.places.size(); ++p) {
      const auto file = volumes_.places[p].file(volumes_.world);
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

  void look_at_records(const ReadOnly& opened, const ObjectNames& names) {
    out_.bytes += opened.layout.used() * opened.paths.size();
    try {
      recovered_ = opened.recover(names);
    } catch (const Error& error) {
      tell(0, opened.paths[0]->volume(), storage::kSuperblockExtent, opened.layout.used(), error.what());
      return;
    }
    is_recovered_ = true;
    if (recovered_.found) out_.step = recovered_.newest.step;
    for (const auto& damage : recovered_.damage) {
      tell(damage.path, opened.paths[damage.path]->volume(), storage::kSuperblockExtent + damage.offset, damage.bytes,
           damage.what);
    }
  }

  void read_manifests(const ReadOnly& opened, const std::vector<std::filesystem::path>& pinned) {
    journal::PinnedCheck check(recovered_);
    for (const auto& directory : pinned) {
      try {
        manifests_.push_back(read_manifest(directory, opened.layout.identity(), *opened.check, volumes_.world));
        const auto wrong = is_recovered_ ? check.objection(manifests_.back()) : std::string();
        if (!wrong.empty()) tell(0, directory / manifest_name(volumes_.world), 0, 0, wrong);
      } catch (const Error& error) {
        tell(0, directory / manifest_name(volumes_.world), 0, 0, error.what());
      }
    }
  }

  void read_pieces(const ReadOnly& opened, const ObjectNames& names) {
    std::vector<journal::ScrubObject> objects;
    objects.reserve(recovered_.snapshots.size() + recovered_.gradients.size());
    for (const auto& it : recovered_.snapshots) objects.push_back({journal::ObjectKind::snapshot, &it.stored});
    for (const auto& it : recovered_.gradients) objects.push_back({journal::ObjectKind::gradient, &it.stored});
    for (const auto& manifest : manifests_) {
      for (const auto& it : manifest.snapshots) objects.push_back({journal::ObjectKind::snapshot, &it});
    }
    const auto scrubbed = journal::scrub(opened.pointers, objects);
    out_.bytes += scrubbed.bytes;
    for (const auto& it : scrubbed.damage) {
      const auto& path = *opened.paths[it.piece.place.path];
      const auto offset =
          storage::kSuperblockExtent + path.metadata() + it.piece.place.piece * storage::kExtentAlignment;
      tell(it.piece.place.path, path.volume(), offset, it.piece.bytes,
           text(names.describe(it.of.kind, it.of.stored->object, it.piece.part, it.first, it.piece.bytes), " of step ",
                it.of.stored->version));
    }
  }

  const RunPlan& plan_;
  VolumeSettings volumes_;
  journal::Recovered recovered_;
  bool is_recovered_ = false;  ///< the records could be read to the end
  std::vector<journal::Manifest> manifests_;
  Verification out_;
};

}  // namespace

Verification verify(const RunPlan& plan, VolumeSettings volumes, const std::vector<std::filesystem::path>& pinned) {
  return Verifier(plan, std::move(volumes)).run(pinned);
}

}  // namespace spillway::execute
