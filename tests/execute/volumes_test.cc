// Which places hold a run, told by what their volumes say.
#include "spillway/execute/volumes.h"

#include <gtest/gtest.h>

#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using test::Planned;

class Volumes : public ::testing::Test {
 protected:
  Volumes() : planned({.paths = 2}), layout(spec()) {}

  [[nodiscard]] journal::JournalSpec spec() const {
    return journal_spec(planned.description, planned.layout, plan::Durability::step, "a run", 2);
  }
  /// Makes volumes that stay, with a commit.
  void make() {
    auto settings = planned.volumes();
    settings.overwrite = true;
    execute::Run run(planned.run_plan(), settings, 1, {});
    test::fill(run, planned);
    run.commit("");
    run.wait_durable();
  }

  const Planned planned;
  const journal::MetadataLayout layout;
};

TEST_F(Volumes, HoldARunOnceItHasCommitted) {
  EXPECT_FALSE(holds_run(planned.volumes(), layout));
  EXPECT_NO_THROW(require_nothing_is_lost(planned.volumes(), &layout));
  make();
  EXPECT_TRUE(holds_run(planned.volumes(), layout));
  EXPECT_FALSE(without_records(planned.volumes()));
  EXPECT_ERROR(require_nothing_is_lost(planned.volumes(), &layout), ErrorCode::bad_input, "resume it, or start anew");
  auto overwrite = planned.volumes();
  overwrite.overwrite = true;
  EXPECT_NO_THROW(require_nothing_is_lost(overwrite, &layout));
}

TEST_F(Volumes, OfAnotherRunAreNoneOfThis) {
  make();
  auto other = planned.volumes();
  other.run = "another run";
  EXPECT_FALSE(holds_run(other, layout));
}

TEST_F(Volumes, BelongTogether) {
  make();
  std::filesystem::remove(planned.volume(1));
  EXPECT_ERROR(static_cast<void>(holds_run(planned.volumes(), layout)), ErrorCode::bad_input,
               "holds a part of this run");
  const auto first = planned.where() / "first";
  std::filesystem::rename(planned.volume(0), first);
  make();
  std::filesystem::rename(first, planned.volume(0));
  EXPECT_ERROR(static_cast<void>(holds_run(planned.volumes(), layout)), ErrorCode::bad_input, "at different times");
}

TEST_F(Volumes, WithoutRecordsAreThoseOfRunsThatAreNotDurable) {
  EXPECT_FALSE(without_records(planned.volumes()));
  const Planned not_durable({.durability = plan::Durability::none});
  { const execute::Run run(not_durable.run_plan(), not_durable.volumes(), 1, {}); }
  EXPECT_TRUE(without_records(not_durable.volumes()));
}

TEST(Fingerprint, TellsModelsApart) {
  const auto of = [](const plan::test::Shape& shape) {
    const auto description = plan::test::describe(shape);
    return fingerprint(description, description.layout());
  };
  const auto base = test::layers();
  EXPECT_EQ(of(base), of(base));
  auto wider = base, frozen = base, other = base;
  wider.ffn *= 2;
  frozen.frozen = "up";
  other.optimizer = &optim::lion;
  for (const auto& shape : {wider, frozen, other}) EXPECT_NE(of(shape), of(base));
}

TEST(VolumePlace, IsADirectoryOrADevice) {
  EXPECT_EQ((VolumePlace{"/ssd"}.file()), "/ssd/spillway.volume");
  EXPECT_EQ((VolumePlace{"/dev/nvme0n1", true}.file()), "/dev/nvme0n1");
}

}  // namespace
}  // namespace spillway::execute
