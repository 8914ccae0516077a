#include "spillway/execute/volumes.h"

#include "spillway/base/error.h"
#include "spillway/storage/checksum.h"
#include "spillway/storage/superblock.h"
#include "spillway/storage/volume.h"

namespace spillway::execute {
namespace {

/// Whether a volume of the run, with records, is there. Whose another one is, its opening will say.
bool holds_run(const VolumePlace& place, const std::string& run) {
  const auto file = place.file();
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return false;
  const auto pair = storage::read_superblocks(sys::File(file));
  // A damaged one is not given up for lost: opening it says what is wrong.
  if (pair.state != storage::SuperblockState::valid) return pair.state != storage::SuperblockState::foreign;
  return pair.superblock.run == run && pair.superblock.metadata > 0 && pair.superblock.ready;
}

}  // namespace

std::filesystem::path VolumePlace::file() const {
  return device ? path : path / storage::kVolumeName;
}

std::uint64_t fingerprint(const plan::Description& description, const state::Layout& layout) {
  std::string words = text(description.type == state::ComputeType::bf16 ? "bf16" : "fp32", ' ', description.tied_head,
                           ' ', description.chunk_elements, '\n');
  for (const auto& tensor : layout.tensors()) {
    words += text(tensor.block, ' ', tensor.spec.name);
    for (const auto dimension : tensor.spec.shape) words += text(' ', dimension);
    words += '\n';
  }
  return storage::checksum(std::as_bytes(std::span(words)), 0);
}

bool holds_run(const VolumeSettings& settings) {
  std::string with, without;
  for (const auto& place : settings.places) {
    auto& list = holds_run(place, settings.run) ? with : without;
    list += text(list.empty() ? "" : ", ", place.path.string());
  }
  if (with.empty() || without.empty()) return without.empty();
  throw Error(ErrorCode::bad_input, text("storage: ", with, " holds a part of this run, but ", without,
                                         " does not; name the paths that the run was started with, in their order"));
}

std::vector<std::unique_ptr<storage::Path>> open_volumes(const VolumeSettings& settings, const plan::Plan& plan,
                                                         Bytes records, std::uint64_t model, VolumeMode mode) {
  std::vector<std::unique_ptr<storage::Path>> out;
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
    options.reopen = mode == VolumeMode::reopen;
    options.prewrite = records > 0 && !settings.places[p].device;  // of a drive every byte can be written
    out.push_back(settings.ring ? std::make_unique<storage::Path>(options, settings.ring)
                                : std::make_unique<storage::Path>(options));
    if (mode == VolumeMode::make && !settings.keep) out.back()->remove_on_close();
  }
  return out;
}

std::vector<storage::PoolPath> pool_paths(const std::vector<std::unique_ptr<storage::Path>>& paths,
                                          const plan::Rates& rates) {
  std::vector<storage::PoolPath> out;
  for (std::size_t p = 0; p < paths.size(); ++p) {
    const auto rate = p < rates.paths.size() ? rates.paths[p] : plan::PathRates{};
    out.push_back({.path = paths[p].get(),
                   .capacity = paths[p]->capacity(),
                   .expected = {.read = rate.read, .write = rate.write},
                   .name = std::to_string(p)});
  }
  return out;
}

}  // namespace spillway::execute
