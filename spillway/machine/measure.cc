#include "spillway/machine/measure.h"

#include <unistd.h>

#include <algorithm>

#include "spillway/machine/calibrate.h"
#include "spillway/machine/compute_load.h"
#include "spillway/machine/facts.h"
#include "spillway/machine/measure_device.h"
#include "spillway/machine/node_work.h"
#include "spillway/memory/arena.h"
#include "spillway/storage/path.h"
#include "spillway/sys/block_device.h"
#include "spillway/sys/cpu.h"
#include "spillway/sys/device_id.h"
#include "spillway/sys/numa.h"

namespace spillway::machine {
namespace {

constexpr Bytes kArea = 512 * MiB;
constexpr Bytes kLeastFree = 2 * GiB;
constexpr Bytes kLeastUpdateMemory = 96 * MiB, kMostUpdateMemory = 512 * MiB;
constexpr Bytes kPathMemory = 32 * MiB;

/// A folder of our own in a storage directory, removed with all it holds.
class Folder {
 public:
  explicit Folder(const std::filesystem::path& parent)
      : path_(parent / (".spillway-measure-" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Paths on one drive.
struct Drive {
  sys::DeviceId id;
  std::vector<std::size_t> paths;
  std::size_t measured;  ///< of the paths, the one that is
};

/// What each of `paths` paths on a drive gets when they all work.
PathProfile shared(const PathProfile& rates, std::size_t paths, std::string name) {
  const auto share = 1.0 / static_cast<double>(paths);
  return {.name = std::move(name),
          .read_bytes_per_second = rates.read_bytes_per_second * share,
          .write_bytes_per_second = rates.write_bytes_per_second * share,
          .mixed_bytes_per_second = rates.mixed_bytes_per_second * share,
          .cores_at_full_speed = rates.cores_at_full_speed * share};
}

/// Rates of 0 where there is too little space to measure.
PathProfile measure_directory(const std::filesystem::path& directory, unsigned cores, double seconds) {
  std::error_code unknown;
  if (std::filesystem::space(directory, unknown).available < kLeastFree || unknown) return {};
  const Folder folder(directory);
  const memory::Arena memory(kPathMemory);
  storage::PathOptions options;
  options.directory = folder.path();
  options.capacity = kArea;
  options.run = "measure";
  storage::Path path(options);
  path.remove_on_close();
  path.register_memory(memory.span());
  const auto offset = path.allocate(kArea);
  return calibrate_path(path, options.name, memory.span(), {.offset = offset, .bytes = kArea}, seconds, cores);
}

/// Twice the cache, so that updates are measured at the speed of memory.
Bytes update_memory(const Profile& machine, Bytes most) {
  const auto wanted = std::clamp<Bytes>(2 * sys::largest_caches(), kLeastUpdateMemory, kMostUpdateMemory);
  return std::max(std::min({wanted, most, round_down(machine.dram_available / 8, sys::kPage)}), kCalibrationMemory);
}

void measure_updates(Profile& out, Bytes bytes, double seconds, const UpdateKind& kind) {
  const memory::Arena memory(bytes);
  const auto rates = update_rates(memory.span(), sys::thread_affinity(), out.cores, seconds, kind);
  out.update_elements_per_second = rates.thread;
  out.update_elements_per_second_all_cores = rates.all;
  out.compute_share_beside_update = share_beside(std::max(1U, out.cores), seconds, [&] {
    out.update_elements_per_second_beside = calibrate_update(memory.span(), seconds, kind);
  });
}

/// A directory tells more of its drive than a block device, which is only read.
std::vector<Drive> drives_of(std::span<const std::filesystem::path> places) {
  std::vector<Drive> drives;
  for (std::size_t p = 0; p < places.size(); ++p) {
    const auto id = sys::whole_device(sys::device_of(places[p]));
    auto drive = std::ranges::find(drives, id, &Drive::id);
    if (drive == drives.end()) drive = drives.insert(drive, {id, {}, p});
    if (sys::is_block_device(places[drive->measured]) && !sys::is_block_device(places[p])) drive->measured = p;
    drive->paths.push_back(p);
  }
  return drives;
}

}  // namespace

Profile measure(std::span<const std::filesystem::path> places, double seconds, const UpdateKind& kind,
                Bytes most_memory) {
  auto out = facts();
  measure_updates(out, update_memory(out, most_memory), seconds, kind);
  out.paths.resize(places.size());
  for (const Drive& drive : drives_of(places)) {
    const auto& place = places[drive.measured];
    const PathProfile rates =
        sys::is_block_device(place) ? measure_device(place, seconds) : measure_directory(place, out.cores, seconds);
    for (const auto p : drive.paths) out.paths[p] = shared(rates, drive.paths.size(), std::to_string(p));
  }
  return out;
}

}  // namespace spillway::machine
