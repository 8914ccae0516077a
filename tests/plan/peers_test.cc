// The other systems' methods against the figures their papers print.
#include <gtest/gtest.h>

#include "spillway/base/error.h"
#include "spillway/plan/peers/cxl.h"
#include "spillway/plan/peers/host_memory.h"
#include "spillway/plan/peers/streamed.h"
#include "spillway/plan/peers/third_level.h"

namespace spillway::plan {
namespace {

constexpr double kGiB = static_cast<double>(GiB);

Hardware cxl_machine() {
  Hardware out{.name = "two GPUs, one card"};
  out.nodes = {{.capacity = 128 * GiB, .update = 28 * 671e6 / 67.6e-3},
               {.name = "numa:2",
                .cxl = true,
                .capacity = 512 * GiB,
                .update = 28 * 671e6 / 273.3e-3,
                .to_devices = 49.8 * kGiB,
                .from_devices = 34.7 * kGiB}};
  out.devices.assign(2, {.memory = 80 * GiB, .flops = 150e12, .to_device = 51.8 * kGiB, .from_device = 51.7 * kGiB});
  return out;
}

TEST(Cxl, TransfersAndUpdatesOfAMixFollowFromThoseOfItsParts) {
  const auto hardware = cxl_machine();
  const auto gib = [&](std::size_t devices, bool back, const Shares& nodes) {
    return transfer_rate(hardware, devices, back, nodes, 2 * kGiB) / kGiB;
  };
  EXPECT_NEAR(gib(2, false, {0, 1}), 24.9, 2.4);
  EXPECT_NEAR(gib(1, false, {0.5, 0.5}), 51.8, 5);
  EXPECT_NEAR(gib(2, false, {0.5, 0.5}), 49.6, 4.9);
  EXPECT_NEAR(gib(2, true, {0, 1}), 18.2, 1.8);
  EXPECT_NEAR(gib(2, true, {0.5, 0.5}), 34.4, 3.4);
  const auto ms = [&](double dram) { return 1e3 * update_seconds(hardware, 671e6, {dram, 1 - dram}); };
  EXPECT_NEAR(ms(1.0 / 2), 138.9, 13);
  EXPECT_NEAR(ms(1.0 / 3), 175.6, 17);
  EXPECT_NEAR(ms(1.0 / 5), 216.3, 21);
  EXPECT_LT(ms(0.8), 0.82 * ms(1)) << "nobody tried this";
}

TEST(Cxl, DealtIsFasterThanClassWiseAndThatThanInterleaved) {
  const auto hardware = cxl_machine();
  const CxlWork work{.parameters = 7.6e9, .layers = 28, .hidden = 3584, .sequence = 4096, .batch = 1};
  const auto seconds = [&](CxlPlacement placement) { return cxl_step_seconds(hardware, work, placement); };
  EXPECT_LT(seconds(CxlPlacement::class_wise), seconds(CxlPlacement::interleaved));
  EXPECT_LE(seconds(CxlPlacement::dram_only), seconds(CxlPlacement::class_wise));
  EXPECT_LT(seconds(CxlPlacement::dealt), seconds(CxlPlacement::dram_only));
  auto small = hardware;
  small.nodes[1].capacity = GiB;
  EXPECT_THROW(static_cast<void>(cxl_step_seconds(small, work, CxlPlacement::class_wise)), Error);
}

TEST(HostMemory, IsThatOfThePublishedTable) {
  const struct {
    DecoderShape shape;
    double zero_infinity, memascend;  ///< GiB
  } table[] = {
      {{"Llama-3.1-8B", 32, 4096, 14336, 4096, 1024, 128256}, 70.4, 32.2},
      {{"Qwen2.5-7B", 28, 3584, 18944, 3584, 512, 152064, false, true}, 69.3, 31.6},
      {{"Qwen2.5-14B", 48, 5120, 13824, 5120, 1024, 152064, false, true}, 105.3, 45.8},
      {{"Qwen2.5-32B", 64, 5120, 27648, 5120, 1024, 152064, false, true}, 187.5, 79.7},
  };
  for (const auto& row : table) {
    const auto gib = [](const HostMemory& memory) { return static_cast<double>(memory.total()) / kGiB; };
    EXPECT_NEAR(gib(zero_infinity_memory(row.shape)), row.zero_infinity, 0.1) << row.shape.name;
    EXPECT_NEAR(gib(memascend_memory(row.shape)), row.memascend, 0.1) << row.shape.name;
  }
}

TEST(ThirdLevel, OffloadingLessAndToTwoPlacesIsFasterByThePublishedFactor) {
  Hardware node{.name = "four GPUs"};
  node.nodes = {{.capacity = 512 * GiB, .update = 400e9}};
  node.devices.assign(4, {.memory = 80 * GiB, .flops = 400e12, .to_device = 50e9, .from_device = 50e9});
  node.drives = {{.read = 6.4e9, .write = 5.3e9}, {.name = "path:1", .read = 3.6e9, .write = 3.6e9}};
  const ThirdLevelWork work{.parameters = 70e9, .tokens = 8192};
  const auto zero = zero3_iteration(node, work), mlp = mlp_offload_iteration(node, work, 137e9);
  EXPECT_NEAR(zero.total() / mlp.total(), 2.45, 0.245);
  EXPECT_GT(zero.update, 0.8 * zero.total()) << "the update is most of an iteration";
  EXPECT_LT(mlp.backward, zero.backward / 5) << "no gradients are written";
  // What is cached is not moved.
  EXPECT_NEAR(mlp_offload_iteration(node, work, 12 * 70e9 / 2).update / mlp_offload_iteration(node, work, 0).update,
              0.5, 0.03);
}

TEST(Streamed, LayerMajorSavesWhatMicroBatchesRepeat) {
  Hardware box{.name = "one GPU"};
  box.nodes = {{.capacity = 512 * GiB, .update = 150e9}};
  box.devices = {{.memory = 80 * GiB, .flops = 200e12, .to_device = 25e9, .from_device = 25e9}};
  box.drives = {{.read = 3e9, .write = 2e9}};
  StreamedWork work{.parameters = 65e9, .layers = 80, .tokens = 2048, .micro_batches = 1};
  EXPECT_LE(greedy_snake_seconds(box, work), zero_infinity_seconds(box, work));
  work.micro_batches = 12;
  EXPECT_GT(zero_infinity_seconds(box, work), 1.8 * greedy_snake_seconds(box, work));
}

TEST(Streamed, MoreDrivesHelpUntilComputeBounds) {
  Hardware box{.name = "drives"};
  box.nodes = {{.capacity = 512 * GiB, .update = 150e9}};
  box.devices = {{.memory = 24 * GiB, .flops = 150e12, .to_device = 25e9, .from_device = 25e9}};
  const StreamedWork work{.parameters = 13e9, .layers = 40, .tokens = 65536};
  double before = 1e9;
  for (int drives = 1; drives <= 12; ++drives) {
    box.drives.push_back({.read = 5e9, .write = 3e9});
    const auto seconds = lohan_seconds(box, work);
    EXPECT_LE(seconds, before * (1 + 1e-9));
    before = seconds;
  }
  EXPECT_LT(before, 1.05 * 8 * 13e9 * 65536 / 150e12);
}

}  // namespace
}  // namespace spillway::plan
