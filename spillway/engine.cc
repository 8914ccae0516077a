#include "spillway/engine.h"

#include <utility>

#include "spillway/engine_parts.h"
#include "spillway/engine_testing.h"
#include "spillway/execute/alike.h"
#include "spillway/execute/journal_objects.h"
#include "spillway/execute/read_only.h"
#include "spillway/plan/requests.h"
#include "spillway/storage/superblock.h"

namespace spillway {
namespace {

void check_network(const plan::Description& description, const network::Port* network) {
  const auto size = description.world.size, rank = description.world.rank;
  if (size == 1 || (network != nullptr && network->size() == size && network->rank() == rank)) return;
  throw Error(ErrorCode::bad_input,
              text("the engine is rank ", rank, " of a world of ", size, " processes, and its network ",
                   network == nullptr ? std::string("is missing")
                                      : text("is that of rank ", network->rank(), " of ", network->size())));
}

std::unique_ptr<network::CountingPort> counted(const std::shared_ptr<network::Port>& port, const state::World& world) {
  return port == nullptr ? nullptr : std::make_unique<network::CountingPort>(port, world.local);
}

plan::Description checked(plan::Description description) {
  plan::check_description(description);
  return description;
}

/// The budget with what each volume takes for itself.
plan::Budget checked(const plan::Description& description, const state::Layout& layout,
                     const state::Ownership& ownership, const Settings& settings) {
  if (description.widens() && traits(description.computes()).rounds) {
    throw Error(ErrorCode::bad_input, text("compute_dtype ", state::name_of(description.computes()),
                                           " with weight_dtype ", state::name_of(description.weight_dtype),
                                           ": weights are computed with as they are kept, or in fp32; give only one"));
  }
  check_network(description, settings.network.get());
  auto out = settings.budget;
  const auto paths = settings.storage.places.size();
  if (out.paths.size() != paths) {
    throw Error(ErrorCode::bad_input,
                text("the budget names ", out.paths.size(), " storage paths, the settings ", paths, " places"));
  }
  if (paths == 0) return out;
  const auto spec = execute::journal_spec(description, layout, ownership, plan::Durability::step, settings.run, paths);
  out.superblock = storage::kSuperblockExtent;
  out.records = journal::MetadataLayout(spec).bytes();
  return out;
}

}  // namespace

EngineParts::EngineParts(plan::Description description, Settings settings)
    : description_(checked(std::move(description))),
      settings_(std::move(settings)),
      network_(counted(settings_.network, description_.world)),
      layout_(description_.layout()),
      ownership_(description_.ownership(layout_)),
      budget_(checked(description_, layout_, ownership_, settings_)),
      plan_(plan::make_plan(description_, layout_, budget_, settings_.rates)) {}

EngineParts::~EngineParts() {
  try {
    close();
  } catch (...) {  // what must not be lost is closed by close()
  }
}

Recovery EngineParts::start(const OpenOptions& open_options) {
  reader_.reset();
  run_.reset();
  auto run = std::make_unique<execute::Run>(run_plan(), volumes(), settings_.threads, open_options);
  auto out = run->recovery();
  if (settings_.network && description_.is_shared()) execute::check_alike(run_plan());
  if (run->started()) run_ = std::move(run);
  return out;
}

Recovery EngineParts::read_back(const std::optional<std::filesystem::path>& checkpoint, std::int64_t at_most) {
  reader_ = std::make_unique<execute::ReadBack>(run_plan(), volumes(), settings_.threads, checkpoint, at_most);
  return reader_->recovery();
}

Verification EngineParts::verify(const std::vector<std::filesystem::path>& pinned) const {
  return execute::verify(run_plan(), volumes(), pinned);
}

DurableStep EngineParts::durable_step() const {
  return execute::newest_step(run_plan(), volumes());
}

DurableStep EngineParts::durable_step(const ShardVolumes& shard) const {
  return execute::newest_step(run_plan(), volumes(), shard);
}

Recovery EngineParts::redeal(const RedealOptions& options) {
  return run().redeal(volumes(), settings_.threads, options);
}

void EngineParts::close() {
  struct Close {  // after the run, which may still vote
    journal::ServedVotes& votes;
    ~Close() { votes.close(); }
  };
  const Close close{votes_};
  reader_.reset();
  if (!run_) return;
  const auto run = std::move(run_);
  run->wait_durable();
}

void EngineParts::give_up_volumes() noexcept {
  if (run_) run_->give_up_volumes();
}

execute::Run& EngineParts::run() const {
  if (!run_) throw Error(ErrorCode::bad_input, "the engine is not started; call start() first");
  return *run_;
}

execute::RunPlan EngineParts::run_plan() const {
  return {description_, layout_,         ownership_,       budget_,        settings_.rates,
          plan_,        settings_.nodes, settings_.device, network_.get(), settings_.piece_period};
}

execute::VolumeSettings EngineParts::volumes() const {
  const auto world = ownership_.world();
  return {settings_.storage, settings_.run, settings_.hooks ? settings_.hooks->ring : sys::RingFactory{}, world,
          world.size > 1 ? &votes_ : nullptr};
}

// ---- the engine

Engine::Engine(plan::Description description, Settings settings)
    : EngineStep(parts_),
      EngineStore(parts_),
      EngineTelemetry(parts_),
      parts_(std::make_unique<EngineParts>(std::move(description), std::move(settings))) {}
Engine::~Engine() = default;

const plan::Plan& Engine::plan() const {
  return parts_->plan();
}
const state::Layout& Engine::layout() const {
  return parts_->layout();
}

}  // namespace spillway
