#include "spillway/machine/measure.h"

#include <unistd.h>

#include "spillway/machine/calibrate.h"
#include "spillway/machine/facts.h"
#include "spillway/memory/arena.h"
#include "spillway/storage/path.h"

namespace spillway::machine {
namespace {

constexpr Bytes kArea = 512 * MiB;
constexpr Bytes kLeastFree = 2 * GiB;
constexpr Bytes kUpdateMemory = 96 * MiB;  // beyond the caches of most processors
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

PathProfile measure_path(const std::filesystem::path& directory, double seconds) {
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
  return calibrate_path(path, options.name, memory.span(), {.offset = offset, .bytes = kArea}, seconds);
}

}  // namespace

Profile measure(const std::filesystem::path& directory, double seconds) {
  auto out = facts();
  {
    const memory::Arena memory(kUpdateMemory);
    out.update_elements_per_second = calibrate_update(memory.span(), seconds);
  }
  std::error_code unknown;
  if (!directory.empty() && std::filesystem::space(directory, unknown).available >= kLeastFree && !unknown) {
    out.paths.push_back(measure_path(directory, seconds));
  }
  return out;
}

}  // namespace spillway::machine
