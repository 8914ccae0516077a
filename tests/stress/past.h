// Images of a run's volumes and checkpoints, of which one or the other is put back later: a snapshot of a drive or of a
// virtual machine that goes back in time while the rest does not.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "spillway/storage/superblock.h"
#include "spillway/storage/volume.h"
#include "tests/stress/process.h"
#include "tests/stress/round.h"

namespace spillway::stress {

class Past {
 public:
  Past(const Scenario& scenario, std::uint64_t seed) : scenario_(scenario), random_(seed * 131 + 7) {}

  /// The run lies there.
  void begin(const std::filesystem::path& where) { where_ = where; }
  /// Between two processes: takes an image at times, and at times puts one back; `tell` is called then.
  void meddle(Totals& totals, const std::function<void(const std::string&)>& tell) {
    const auto& swarm = scenario_.swarm;
    if (!(swarm.old_volumes || swarm.old_checkpoints || swarm.old_superblocks)) return;
    const auto count = [&](const std::string& what) {
      ++totals[what];
      tell(what);
    };
    if (std::filesystem::exists(image())) {
      if (swarm.old_volumes && one_in(random_, 6)) put_volumes_back(count);
      if (swarm.old_checkpoints && one_in(random_, 6)) put_checkpoints_back(count);
      if (swarm.old_superblocks && one_in(random_, 4)) put_superblock_back(count);
    }
    if (one_in(random_, 3)) take();
  }

 private:
  using Count = std::function<void(const std::string&)>;

  [[nodiscard]] std::filesystem::path image() const { return where_ / "image"; }
  [[nodiscard]] std::filesystem::path volume(std::size_t path) const {
    return where_ / std::to_string(path) / storage::kVolumeName;
  }
  [[nodiscard]] std::filesystem::path image(std::size_t path) const { return image() / std::to_string(path); }

  void take() {
    std::filesystem::remove_all(image());
    std::filesystem::create_directory(image());
    for (std::size_t p = 0; p < scenario_.paths; ++p) {
      if (std::filesystem::exists(volume(p))) std::filesystem::copy_file(volume(p), image(p));
    }
    for (const auto& it : checkpoints(where_)) {
      std::filesystem::copy(it, image() / it.filename(), std::filesystem::copy_options::recursive);
    }
  }

  void put_volumes_back(const Count& count) {
    const bool all = scenario_.paths == 1 || one_in(random_, 3);
    const auto one = random_() % scenario_.paths;
    for (std::size_t p = 0; p < scenario_.paths; ++p) {
      if ((!all && p != one) || !std::filesystem::exists(image(p))) continue;
      // Under a name of its own: what a killed process has in flight goes to the file of before.
      std::filesystem::copy_file(image(p), where_ / "back", std::filesystem::copy_options::overwrite_existing);
      std::filesystem::create_directories(volume(p).parent_path());
      std::filesystem::rename(where_ / "back", volume(p));
    }
    count(all ? "times that all volumes went back" : "times that one volume of several went back");
  }

  void put_checkpoints_back(const Count& count) {
    for (const auto& it : checkpoints(where_)) std::filesystem::remove_all(it);
    for (const auto& it : checkpoints(image())) {
      std::filesystem::copy(it, where_ / it.filename(), std::filesystem::copy_options::recursive);
    }
    count("times that the checkpoints went back");
  }

  void put_superblock_back(const Count& count) {
    const auto path = random_() % scenario_.paths;
    const auto at = static_cast<std::streamoff>(storage::kSuperblockOffsets[random_() % 2]);
    const auto from = random_() % scenario_.paths;  // at times that of another path
    if (!std::filesystem::exists(volume(path)) || !std::filesystem::exists(image(from))) return;
    std::vector<char> page(storage::kSuperblockBytes);
    std::ifstream in(image(from), std::ios::binary);
    in.seekg(at).read(page.data(), static_cast<std::streamsize>(page.size()));
    std::fstream out(volume(path), std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(at).write(page.data(), static_cast<std::streamsize>(page.size()));
    count("superblocks that went back");
  }

  const Scenario scenario_;
  Random random_;
  std::filesystem::path where_;
};

}  // namespace spillway::stress
