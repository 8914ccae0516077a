#include "spillway/execute/volumes.h"

#include <random>

#include "spillway/storage/checksum.h"
#include "spillway/storage/volume.h"

namespace spillway::execute {
namespace {

std::uint32_t number(std::size_t value) {
  return static_cast<std::uint32_t>(value);
}

std::uint64_t random_set() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random() | 1;
}

}  // namespace

std::filesystem::path VolumePlace::file(const state::World& world) const {
  return device ? path : path / storage::volume_name(number(world.rank), number(world.size));
}

std::uint64_t fingerprint(const plan::Description& description, const state::Layout& layout) {
  const auto words = model_words(description, layout);
  return storage::checksum(std::as_bytes(std::span(words)), 0);
}

std::vector<std::unique_ptr<storage::Path>> open_volumes(const VolumeSettings& settings,
                                                         std::span<const Bytes> capacities, Bytes records,
                                                         std::uint64_t model, VolumeMode mode) {
  std::vector<std::unique_ptr<storage::Path>> out;
  out.reserve(settings.places.size());
  const auto set = random_set();
  std::vector<std::filesystem::path> others;
  for (std::size_t p = 1; p < settings.places.size(); ++p) others.push_back(settings.places[p].file(settings.world));
  for (std::size_t p = 0; p < settings.places.size(); ++p) {
    storage::PathOptions options;
    options.name = std::to_string(p);
    (settings.places[p].device ? options.device : options.directory) = settings.places[p].path;
    options.erase = settings.erase;
    options.capacity = capacities[p];
    options.run = settings.run;
    options.overwrite = settings.overwrite;
    if (!settings.ring) options.share.emplace();  // of a shared drive every transfer ends; a test's ring may hold some
    options.metadata = records;
    options.model = model;
    options.number = static_cast<std::uint32_t>(p);
    options.paths = static_cast<std::uint32_t>(settings.places.size());
    options.set = set;
    options.shard = number(settings.world.rank);
    options.world = number(settings.world.size);
    options.reopen = mode == VolumeMode::reopen;
    options.keep_records = true;          // another process of the run may have made steps since they were looked at
    if (p == 0) options.beside = others;  // with its lock no other process of the run can come to the rest
    options.prewrite = records > 0 && !settings.places[p].device;  // of a drive every byte can be written
    out.push_back(settings.ring ? std::make_unique<storage::Path>(options, settings.ring)
                                : std::make_unique<storage::Path>(options));
    if (mode == VolumeMode::make) out.back()->remove_on_close();  // until the run has begun
  }
  return out;
}

std::vector<Bytes> capacities_of(std::span<const std::unique_ptr<storage::Path>> paths) {
  std::vector<Bytes> out;
  for (const auto& path : paths) out.push_back(path->capacity());
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
                   .remote = p < budget.size() && budget[p].remote});
  }
  return out;
}

}  // namespace spillway::execute
