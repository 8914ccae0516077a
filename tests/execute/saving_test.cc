// What a run leaves on its paths can be gone on with, and nothing of it is taken back by accident.
#include "spillway/execute/saving.h"

#include <gtest/gtest.h>

#include <optional>
#include <tuple>

#include "spillway/execute/manifest_file.h"
#include "spillway/execute/read_back.h"
#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using test::Planned;

/// What Saving is given, without the steps that would change it.
struct Parts {
  explicit Parts(const Planned& planned, const OpenOptions& open_options = {})
      : plan(planned.run_plan()), storage(plan, settings(planned, open_options)) {
    EXPECT_TRUE(storage.open(open_options, recovery));
    resources.emplace(plan, 1, storage.paths());
    storage.start(recovery);
    tiers.emplace(plan.plan, plan.layout, plan.description.rule(), resources->arenas(), storage.store(), nullptr);
    const auto committed = recovery.has_step ? std::optional(recovery.step) : std::nullopt;
    saving.emplace(plan, storage, *tiers, resources->scratch(), committed);
    storage.started();
    if (recovery.has_step) return;
    std::fill_n(resources->scratch().begin(), largest_chunk_bytes(plan.description.rule(), plan.layout), std::byte{1});
    auto* const memory = resources->scratch().data();
    for (const auto& chunk : plan.layout.chunks()) {
      tiers->store(chunk.id, memory, memory + weight_bytes(plan.description.rule(), chunk));
    }
  }
  ~Parts() { storage.stop(); }
  static VolumeSettings settings(const Planned& planned, const OpenOptions& open_options) {
    auto out = planned.volumes();
    out.overwrite = !open_options.reopen;
    return out;
  }

  const RunPlan plan;
  Recovery recovery;
  std::optional<Resources> resources;
  RunStorage storage;
  std::optional<Tiers> tiers;
  std::optional<Saving> saving;
};

Commitment loaded() {
  auto update = optim::make_step(optim::adamw, {});
  update.step = 2;
  return {.at = {.step = 3, .applied = 3, .updates = 2}, .skipped = false, .update = update};
}

TEST(Saving, PublishesASnapshotOfEveryChunkOnce) {
  for (const double resident : {0.0, 1.0}) {
    const Planned planned({.placement = {resident, resident, 1, 1}});
    Parts it(planned);
    it.saving->publish_snapshots(3);
    for (std::size_t c = 0; c < planned.layout.chunks().size(); ++c) EXPECT_TRUE(it.storage.store()->published(c, 3));
    const auto written = it.storage.paths()[0]->counters().written;
    it.saving->publish_snapshots(3);
    EXPECT_EQ(it.storage.paths()[0]->counters().written, written);
  }
}

TEST(Saving, CommitsWhatTheNextProcessFinds) {
  const Planned planned;
  {
    Parts it(planned);
    ASSERT_TRUE(it.saving->durable());
    it.saving->publish_snapshots(3);
    it.saving->commit(loaded(), "payload");
    it.saving->wait_durable();
  }
  Parts it(planned, {.reopen = true});
  EXPECT_TRUE(it.recovery.has_step);
  EXPECT_EQ(it.recovery.step, 3U);
  EXPECT_EQ(it.recovery.updates, 2);
  EXPECT_EQ(it.recovery.payload, "payload");
}

TEST(Saving, HoldsACommitUntilACheckpointWhereGradientsAreNotKept) {
  const Planned planned({.durability = plan::Durability::checkpoint});
  {
    Parts it(planned);
    it.saving->commit(loaded(), "held");
  }
  {
    RunStorage storage(planned.run_plan(), planned.volumes());
    Recovery recovery;
    EXPECT_FALSE(storage.open({.reopen = true, .if_found = true}, recovery));
  }
  {
    Parts it(planned);
    it.saving->commit(loaded(), "kept");
    write_manifest(planned.where(), it.saving->checkpoint(3));
  }
  Parts it(planned, {.reopen = true, .checkpoint = planned.where()});
  EXPECT_EQ(it.recovery.payload, "kept");
}

TEST(Saving, LeavesARunThatIsNotDurableToBeReadBack) {
  const Planned planned({.placement = {1, 0, 0, 1}, .durability = plan::Durability::none});
  {
    Parts it(planned);
    EXPECT_FALSE(it.saving->durable());
    it.saving->wait_durable();  // nothing to wait for
    write_manifest(planned.where(), it.saving->leave(loaded(), "left"));
  }
  ReadBack back(planned.run_plan(), planned.volumes(), 1, planned.where());
  EXPECT_EQ(back.recovery().step, 3U);
  EXPECT_EQ(back.recovery().payload, "left");
}

TEST(Saving, TakesBackWhatWasLeft) {
  const Planned planned({.placement = {1, 0, 0, 1}, .durability = plan::Durability::none});
  for (const bool take_back : {false, true}) {
    {
      Parts it(planned);
      std::ignore = it.saving->leave(loaded(), "");
      if (take_back) it.saving->take_back();
    }
    EXPECT_EQ(std::filesystem::exists(planned.volume()), !take_back);
  }
}

}  // namespace
}  // namespace spillway::execute
