// The other systems' methods against the figures their papers print.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "research/study/cxl.h"
#include "research/study/host_memory.h"
#include "research/study/streamed.h"
#include "research/study/third_level.h"
#include "spillway/base/error.h"

namespace spillway::study {
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
  out.devices.assign(2, {.flops = 150e12, .to_device = 51.8 * kGiB, .from_device = 51.7 * kGiB});
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

TEST(Cxl, ClassWiseIsFasterThanInterleaved) {
  const auto hardware = cxl_machine();
  const CxlWork work{.parameters = 7.6e9, .layers = 28, .hidden = 3584, .sequence = 4096, .batch = 1};
  const auto seconds = [&](CxlPlacement placement) { return cxl_step_seconds(hardware, work, placement); };
  EXPECT_LT(seconds(CxlPlacement::class_wise), seconds(CxlPlacement::interleaved));
  EXPECT_LE(seconds(CxlPlacement::dram_only), seconds(CxlPlacement::class_wise));
  auto small = hardware;
  small.nodes[1].capacity = GiB;
  EXPECT_THROW(static_cast<void>(cxl_step_seconds(small, work, CxlPlacement::class_wise)), Error);
}

/// Moments fit into DRAM, fp32 gradients in part: these are spread evenly, and fp32 weights lie on the card.
TEST(Cxl, AClassThatFitsInPartIsSpreadEvenly) {
  auto hardware = cxl_machine();
  hardware.nodes[0].capacity = 10'000'000'000;
  hardware.devices.assign(1, {.flops = 1e20, .to_device = 1e16, .from_device = 1e16});
  for (auto* rate : {&hardware.nodes[1].to_devices, &hardware.nodes[1].from_devices}) *rate = 1e16;
  const CxlWork work{.parameters = 1e9, .layers = 1, .hidden = 1, .sequence = 1, .batch = 1};
  const double on_card = 2e9 + 8e9, in_dram = 8e9 + 8e9 + 2e9;
  const auto expected = std::max(on_card / hardware.nodes[1].update, in_dram / hardware.nodes[0].update);
  EXPECT_NEAR(cxl_step_seconds(hardware, work, CxlPlacement::class_wise), expected, 1e-4);
}

/// Worked out by hand from what the paper says of its pools; the paper prints their average saving alone, 55.7 %.
TEST(HostMemory, IsWhatWasWorkedOutByHand) {
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

/// The node of arXiv 2509.02480, with rates from its released logs.
Hardware four_gpus() {
  Hardware out{.name = "four GPUs"};
  out.nodes = {{.capacity = 512 * GiB, .update = 360e9}};
  out.devices.assign(4, {.flops = 410e12, .to_device = 50e9, .from_device = 50e9});
  out.drives = {{.read = 6.1e9, .write = 5.66e9, .mixed = 6.1e9}, {.name = "path:1", .read = 3.3e9, .write = 3.3e9}};
  return out;
}

ThirdLevelWork third_level(DecoderShape shape, unsigned buffers) {
  return {.shape = std::move(shape), .tokens = 4 * 2048, .buffers = buffers, .layer_second = 1.3e-3};
}
const DecoderShape k40B{"40B", 128, 5120, 20480, 5120, 512, 50304};
const DecoderShape k52B{"52B", 64, 8192, 21824, 8192, 512, 50304};
const DecoderShape k70B{"70B", 80, 8192, 28672, 8192, 512, 50304};
const DecoderShape k100B{"100B", 124, 8192, 28672, 8192, 512, 50304};
const DecoderShape k120B{"120B", 96, 10240, 28672, 10240, 512, 50304};

TEST(ThirdLevel, SubgroupsAreThoseThatTheReleasedLogsPrint) {
  const struct {
    DecoderShape shape;
    std::uint64_t parameters;
    std::size_t subgroups;
    double largest;
  } table[] = {{k40B, 48163722240, 97, 152047616},
               {k52B, 44278226944, 66, 169742336},
               {k70B, 68605452288, 82, 211816448},
               {k100B, 105885147136, 126, 211816448}};
  for (const auto& it : table) {
    EXPECT_EQ(it.shape.parameters(), it.parameters) << it.shape.name;
    const auto subgroups = subgroups_of(third_level(it.shape, 1), 4);
    EXPECT_EQ(subgroups.size(), it.subgroups) << it.shape.name;
    EXPECT_NEAR(std::ranges::max(subgroups), it.largest, 1024)
        << it.shape.name << ", which is rounded up to a page there";
    EXPECT_NEAR(std::accumulate(subgroups.begin(), subgroups.end(), 0.0) * 4, static_cast<double>(it.parameters), 1);
  }
}

TEST(ThirdLevel, BuffersHoldEveryGradientButNormsAndNoMoreThanTheLargestSubgroup) {
  const auto work = third_level(k40B, 1);
  const auto buffers = gradient_buffers(work, 4);
  EXPECT_LE(std::ranges::max(buffers), std::ranges::max(subgroups_of(work, 4)));
  const double norms = (2 * 128 + 1) * 5120;
  EXPECT_NEAR(std::accumulate(buffers.begin(), buffers.end(), 0.0) * 4, static_cast<double>(k40B.parameters()) - norms,
              1);
}

TEST(ThirdLevel, TakesAsLongAsPublished) {
  const struct {
    DecoderShape shape;
    unsigned buffers;
    double zero, backward, update, mlp;
    double first_wait;  ///< as logged
  } table[] = {{k40B, 64, 242.28, 27.47, 213.61, 101.72, 9.36},
               {k52B, 56, 238.60, 28.29, 209.34, 92.17, 5.19},
               {k70B, 50, 370.56, 32.91, 336.43, 151.34, 18.03},
               {k100B, 36, 572.03, 68.34, 501.92, 275.53, 10.18},
               {k120B, 36, 550.36, 73.19, 475.48, 288.18, 0}};
  for (const auto& it : table) {
    const auto work = third_level(it.shape, it.buffers);
    const auto zero = zero3_iteration(four_gpus(), work), mlp = mlp_offload_iteration(four_gpus(), work);
    EXPECT_NEAR(zero.total() / it.zero, 1, 0.1) << it.shape.name;
    EXPECT_NEAR(zero.backward / it.backward, 1, 0.1) << it.shape.name;
    EXPECT_NEAR(zero.update / it.update, 1, 0.1) << it.shape.name;
    EXPECT_NEAR(mlp.total() / it.mlp, 1, 0.1) << it.shape.name;
    if (it.first_wait > 0) {
      EXPECT_NEAR(zero.first_wait / it.first_wait, 1, 0.1) << it.shape.name;
    }
    EXPECT_NEAR(zero.total() / mlp.total() / (it.zero / it.mlp), 1, 0.1) << it.shape.name;
  }
}

TEST(ThirdLevel, BackwardWaitsForWholeRoundsOfBuffersAndTheUpdateForTheRest) {
  const auto node = four_gpus();
  const auto bytes = 4 * static_cast<double>(k70B.parameters());
  const auto plenty = zero3_iteration(node, third_level(k70B, 1000));
  EXPECT_NEAR(plenty.backward, mlp_offload_iteration(node, third_level(k70B, 1000)).backward, 1e-6) << "no waiting";
  const auto few = zero3_iteration(node, third_level(k70B, 1));
  EXPECT_NEAR(few.backward, plenty.backward + bytes / 5.66e9, 2) << "one by one: nearly all is written before the end";
  EXPECT_LT(few.update, plenty.update - 0.8 * bytes / 5.66e9);
}

TEST(ThirdLevel, WhatBuffersHoldIsNotMoved) {
  const auto node = four_gpus();
  const auto none = mlp_offload_iteration(node, third_level(k70B, 4)).update;
  const auto some = mlp_offload_iteration(node, third_level(k70B, 50)).update;  // 8 of 54 subgroups of the first drive
  EXPECT_NEAR(some / none, 46.0 / 54, 0.03);
  EXPECT_LT(mlp_offload_iteration(node, third_level(k70B, 1000)).update, 0.1 * none) << "all of them";
}

TEST(Streamed, FactorsAreThosePublishedOfGreedySnake) {
  Hardware box{.name = "A100"};
  box.nodes = {{.capacity = 512 * GiB, .update = 150e9}};
  box.devices = {{.flops = 200e12, .to_device = 25e9, .from_device = 25e9}};
  box.drives = {{.read = 6e9, .write = 4e9}};
  const auto factor = [&](double parameters, std::uint64_t layers, double hidden, std::size_t devices) {
    auto hardware = box;
    hardware.devices.resize(devices, box.devices.front());
    const StreamedWork work{.parameters = parameters,
                            .layers = layers,
                            .tokens = 1.62e8 / hidden,
                            .micro_batches = 64,
                            .border = 2 * 1.62e8};
    return zero_infinity_seconds(hardware, work) / greedy_snake_seconds(hardware, work);
  };
  EXPECT_NEAR(factor(65e9, 80, 8192, 1), 1.96, 0.05);
  EXPECT_NEAR(factor(65e9, 80, 8192, 4), 1.93, 0.19);
  EXPECT_NEAR(factor(175e9, 96, 12288, 1), 2.53, 0.25);
}

TEST(Streamed, LayerMajorSavesWhatMicroBatchesRepeat) {
  Hardware box{.name = "one GPU"};
  box.nodes = {{.capacity = 512 * GiB, .update = 150e9}};
  box.devices = {{.flops = 200e12, .to_device = 25e9, .from_device = 25e9}};
  box.drives = {{.read = 3e9, .write = 2e9}};
  StreamedWork work{.parameters = 65e9, .layers = 80, .tokens = 2048, .micro_batches = 1};
  EXPECT_LE(greedy_snake_seconds(box, work), zero_infinity_seconds(box, work));
  work.micro_batches = 12;
  EXPECT_GT(zero_infinity_seconds(box, work), 1.8 * greedy_snake_seconds(box, work));
  auto four = box;  // a device takes a quarter of a layer, and its own micro-batches: what drives bound stays
  four.devices.resize(4, box.devices.front());
  EXPECT_NEAR(zero_infinity_seconds(four, work), zero_infinity_seconds(box, work),
              0.02 * zero_infinity_seconds(box, work));
}

TEST(Streamed, MoreDrivesHelpUntilComputeBounds) {
  Hardware box{.name = "drives"};
  box.nodes = {{.capacity = 512 * GiB, .update = 150e9}};
  box.devices = {{.flops = 150e12, .to_device = 25e9, .from_device = 25e9}};
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
}  // namespace spillway::study
