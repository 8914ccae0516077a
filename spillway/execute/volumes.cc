#include "spillway/execute/volumes.h"

#include <optional>
#include <random>

#include "spillway/base/error.h"
#include "spillway/storage/checksum.h"
#include "spillway/storage/record.h"
#include "spillway/storage/superblock.h"
#include "spillway/storage/volume.h"

namespace spillway::execute {
namespace {

/// What a place holds of a run.
struct Holding {
  enum class State : std::uint8_t {
    nothing,    ///< no volume of the run
    prepared,   ///< a volume that is not ready, or in which nothing was ever committed
    committed,  ///< or one that cannot be read: opening it will say why
  };
  State state = State::nothing;
  std::uint64_t set = 0;
};

/// Whether any slot for commits was ever written.
bool has_commits(const sys::File& file, const storage::MetadataLayout& layout) {
  std::vector<std::byte> slots(layout.commit_slots() * layout.commit_bytes());
  for (std::uint32_t copy = 0; copy < storage::kCopies; ++copy) {
    file.read(slots, storage::kSuperblockExtent + layout.commit(copy, 0));
    if (!storage::blank(slots)) return true;
  }
  return false;
}

Holding look_at(const VolumePlace& place, const std::string& run, const storage::MetadataLayout& layout) {
  const auto path = place.file();
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  const sys::File file(path);
  const auto pair = storage::read_superblocks(file);
  if (pair.state == storage::SuperblockState::foreign) return {};
  if (pair.state != storage::SuperblockState::valid) return {Holding::State::committed};
  const auto& superblock = pair.superblock;
  if (superblock.run != run || superblock.metadata == 0) return {};
  if (!superblock.ready) return {Holding::State::prepared};
  const bool other = superblock.metadata != layout.bytes();
  return {other || has_commits(file, layout) ? Holding::State::committed : Holding::State::prepared, superblock.set};
}

std::uint64_t random_set() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random() | 1;
}

}  // namespace

std::filesystem::path VolumePlace::file() const {
  return device ? path : path / storage::kVolumeName;
}

std::uint64_t fingerprint(const plan::Description& description, const state::Layout& layout) {
  std::string words =
      text(state::name_of(description.type), ' ', description.tied_head, ' ', description.chunk_elements, '\n');
  if (description.rule() != state::UpdateRule{.type = description.type}) {  // which older volumes do not name
    words += text(state::name_of(description.optimizer), ' ', state::name_of(description.format), ' ', description.seed,
                  '\n');
  }
  for (const auto& tensor : layout.tensors()) {
    words += text(tensor.block, ' ', tensor.spec.name);
    for (const auto dimension : tensor.spec.shape) words += text(' ', dimension);
    if (!learns(tensor.spec.learning)) words += " frozen";
    if (tensor.spec.wide) words += " wide";
    if (tensor.subspace.rank > 0) words += text(" subspace ", tensor.subspace.rank, ' ', tensor.subspace.nonzeros);
    words += '\n';
  }
  return storage::checksum(std::as_bytes(std::span(words)), 0);
}

bool holds_run(const VolumeSettings& settings, const storage::MetadataLayout& layout) {
  std::string with, without;
  bool prepared = false, mixed = false;
  std::optional<std::uint64_t> set;
  for (const auto& place : settings.places) {
    const auto holding = look_at(place, settings.run, layout);
    prepared = prepared || holding.state == Holding::State::prepared;
    if (holding.state == Holding::State::committed) {
      mixed = mixed || (set && *set != holding.set);
      set = holding.set;
    }
    auto& list = holding.state == Holding::State::nothing ? without : with;
    list += text(list.empty() ? "" : ", ", place.path.string());
  }
  if (!set) return false;
  // Nothing is committed before the volumes of all paths are made: what was there before was being replaced.
  if (prepared) return false;
  if (without.empty() && !mixed) return true;
  throw Error(
      ErrorCode::bad_input,
      mixed ? text("storage: ", with, " hold volumes of this run that were made at different times; name the paths ",
                   "that the run was last on, or start anew with --overwrite")
            : text("storage: ", with, " holds a part of this run, but ", without,
                   " does not; name the paths that the run was started with, in their order"));
}

std::vector<std::unique_ptr<storage::Path>> open_volumes(const VolumeSettings& settings, const plan::Plan& plan,
                                                         Bytes records, std::uint64_t model, VolumeMode mode) {
  std::vector<std::unique_ptr<storage::Path>> out;
  const auto set = random_set();
  for (std::size_t p = 0; p < settings.places.size(); ++p) {
    storage::PathOptions options;
    options.name = std::to_string(p);
    (settings.places[p].device ? options.device : options.directory) = settings.places[p].path;
    options.erase = settings.erase;
    options.capacity = plan.volumes[p];
    options.run = settings.run;
    options.overwrite = settings.overwrite;
    options.share.emplace();
    options.metadata = records;
    options.model = model;
    options.number = static_cast<std::uint32_t>(p);
    options.paths = static_cast<std::uint32_t>(settings.places.size());
    options.set = set;
    options.reopen = mode == VolumeMode::reopen;
    options.prewrite = records > 0 && !settings.places[p].device;  // of a drive every byte can be written
    out.push_back(settings.ring ? std::make_unique<storage::Path>(options, settings.ring)
                                : std::make_unique<storage::Path>(options));
    if (mode == VolumeMode::make && !settings.keep) out.back()->remove_on_close();
  }
  return out;
}

std::vector<storage::PoolPath> pool_paths(const std::vector<std::unique_ptr<storage::Path>>& paths,
                                          const plan::Rates& rates, std::span<const plan::PathBudget> budget) {
  std::vector<storage::PoolPath> out;
  for (std::size_t p = 0; p < paths.size(); ++p) {
    const auto rate = p < rates.paths.size() ? rates.paths[p] : plan::PathRates{};
    out.push_back({.path = paths[p].get(),
                   .capacity = paths[p]->capacity(),
                   .expected = {.read = rate.read, .write = rate.write},
                   .name = std::to_string(p),
                   .far = p < budget.size() && budget[p].far});
  }
  return out;
}

}  // namespace spillway::execute
