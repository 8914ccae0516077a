// One run between its start and its end: its parts, made in the order in which they need each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/execute/counters.h"
#include "spillway/execute/recovery.h"
#include "spillway/execute/redeal.h"
#include "spillway/execute/resources.h"
#include "spillway/execute/run_plan.h"
#include "spillway/execute/run_storage.h"
#include "spillway/execute/saving.h"
#include "spillway/execute/step.h"
#include "spillway/execute/tensors.h"
#include "spillway/execute/tiers.h"

namespace spillway::execute {

class Run {
 public:
  /// Maps the arena, opens or makes the volumes, recovers. On failure nothing is left behind that was not there.
  Run(const RunPlan& plan, const VolumeSettings& volumes, unsigned threads, const OpenOptions& open_options);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  [[nodiscard]] const Recovery& recovery() const noexcept { return recovery_; }
  /// False: nothing was found, and only what is found was to be gone on with. Then it is of no further use.
  [[nodiscard]] bool started() const noexcept { return step_ != nullptr; }

  [[nodiscard]] Resources& resources() noexcept { return *resources_; }
  [[nodiscard]] Step& step() noexcept { return *step_; }
  [[nodiscard]] Counted counted() const noexcept {
    return {*resources_, storage_, step_->executor(), step_->asked_pieces(), *saving_};
  }

  // Weights and states in and out; each waits for the updates that it needs:

  void load_weights(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& names);
  void store(std::size_t tensor, std::uint64_t first, std::span<const float> values);
  void measure(std::size_t tensor, std::uint64_t first, std::span<const float> values);
  void fetch(std::size_t tensor, std::uint64_t first, std::span<float> values);
  void save_weights(const std::filesystem::path& directory, const state::SaveOptions& options);
  void save_state(const std::filesystem::path& directory);
  /// `updates`: that the state has had.
  state::StateFormat load_state(const std::filesystem::path& directory, const std::filesystem::path& weights,
                                std::int64_t updates, const std::map<std::string, std::string>& names);

  /// Brings in what another number of processes has left; see Redeal. All processes call it alike.
  Recovery redeal(const VolumeSettings& volumes, unsigned threads, const RedealOptions& options);
  /// Calls StepProtocol::load_step().
  void set_step(std::uint64_t step);

  // State to leave behind:

  /// Nothing where nothing is durable.
  void commit(std::string_view payload);
  /// Every update is done and on its tier, and every commit durable.
  void flush();
  /// Calls Saving::wait_durable().
  void wait_durable() { saving_->wait_durable(); }
  /// The state after the last step as a manifest in that directory. Throws Error(bad_input) where nothing is durable.
  void save_manifest(const std::filesystem::path& directory);
  /// The manifest with these bytes is gone.
  void release_manifest(std::span<const std::byte> manifest);
  /// After the last step: it stays on the paths, and so do the volumes. Empty where it is durable; else as
  /// Saving::leave().
  [[nodiscard]] std::vector<std::byte> leave(std::string_view payload);
  void take_back() noexcept { saving_->take_back(); }
  /// Gives up the volumes: they go with the run, whatever the settings say.
  void give_up_volumes() noexcept { storage_.remove_on_close(true); }

 private:
  [[nodiscard]] bool open(const OpenOptions& open_options);
  void map_memory(unsigned threads);
  void start_storage();
  void make_parts();

  /// Whatever ends the run.
  struct Stop {
    RunStorage& storage;
    ~Stop() { storage.stop(); }
  };

  const RunPlan plan_;
  Recovery recovery_;
  std::unique_ptr<Resources> resources_;  ///< made when it is known that the run starts
  RunStorage storage_;
  std::unique_ptr<Tiers> tiers_;
  std::unique_ptr<Tensors> tensors_;
  std::unique_ptr<Saving> saving_;
  std::unique_ptr<Step> step_;
  const Stop stop_{storage_};
};

}  // namespace spillway::execute
