// What an engine is made of, behind its three faces; not for programs.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "spillway/engine.h"
#include "spillway/execute/read_back.h"
#include "spillway/execute/run.h"
#include "spillway/journal/served_votes.h"
#include "spillway/network/counting_port.h"

namespace spillway {

/// A planned run, and what it has become: started, read back, or neither.
class EngineParts {
 public:
  EngineParts(plan::Description description, Settings settings);
  ~EngineParts();
  EngineParts(const EngineParts&) = delete;
  EngineParts& operator=(const EngineParts&) = delete;

  [[nodiscard]] const plan::Description& description() const noexcept { return description_; }
  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }
  [[nodiscard]] const state::Layout& layout() const noexcept { return layout_; }
  [[nodiscard]] const plan::Budget& budget() const noexcept { return budget_; }
  [[nodiscard]] const plan::Plan& plan() const noexcept { return plan_; }

  Recovery start(const OpenOptions& open_options);
  Recovery read_back(const std::optional<std::filesystem::path>& checkpoint, std::int64_t at_most);
  [[nodiscard]] Verification verify(const std::vector<std::filesystem::path>& pinned) const;
  [[nodiscard]] DurableStep durable_step() const;
  [[nodiscard]] DurableStep durable_step(const ShardVolumes& shard) const;
  Recovery redeal(const RedealOptions& options);
  void close();
  void give_up_volumes() noexcept;

  /// Throws Error(bad_input) where the engine is not started.
  [[nodiscard]] execute::Run& run() const;
  /// In a world of one process nobody asks for a vote.
  [[nodiscard]] journal::ServedVotes& votes() noexcept { return votes_; }
  [[nodiscard]] bool started() const noexcept { return run_ != nullptr; }
  /// To the other processes; null: there are none.
  [[nodiscard]] const network::CountingPort* network() const noexcept { return network_.get(); }
  /// Null: read_back() was not called.
  [[nodiscard]] execute::ReadBack* reader() const noexcept { return reader_.get(); }

 private:
  [[nodiscard]] execute::RunPlan run_plan() const;
  [[nodiscard]] execute::VolumeSettings volumes() const;

  mutable journal::ServedVotes votes_;  ///< outlives the run
  const plan::Description description_;
  const Settings settings_;
  const std::unique_ptr<network::CountingPort> network_;
  const state::Layout layout_;
  const state::Ownership ownership_;
  const plan::Budget budget_;
  const plan::Plan plan_;
  std::unique_ptr<execute::Run> run_;
  std::unique_ptr<execute::ReadBack> reader_;
};

}  // namespace spillway
