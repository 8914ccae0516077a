// What several processes of a machine have together is what the machine has.
#include "spillway/plan/process_share.h"

#include <gtest/gtest.h>

namespace spillway::plan {
namespace {

machine::Profile node_of_four() {
  machine::Profile out;
  out.cores = 64;
  out.dram_total = 512 * GiB;
  out.dram_available = 480 * GiB;
  out.nodes = {{.id = 0, .capacity = 256 * GiB, .update_elements_per_second = 4e9, .to_gpus_bytes_per_second = 60e9},
               {.id = 1, .capacity = 256 * GiB, .update_elements_per_second = 4e9, .to_gpus_bytes_per_second = 60e9},
               {.id = 2, .kind = machine::MemoryKind::cxl, .capacity = 128 * GiB}};
  const machine::GpuProfile gpu{.memory = 80 * GiB,
                                .to_gpu_bytes_per_second = 50e9,
                                .from_gpu_bytes_per_second = 40e9,
                                .peer_bytes_per_second = 200e9,
                                .links = {{.node = 1}}};
  out.gpus = {gpu, gpu, gpu, gpu};
  out.paths = {{.read_bytes_per_second = 6e9, .write_bytes_per_second = 4e9, .capacity = 4000 * GiB}};
  out.update_elements_per_second = 1e9;
  out.network = 25e9;
  return out;
}

TEST(ProcessShare, DividesWhatAllUseAtOnce) {
  const auto share = process_share(node_of_four(), 4);
  EXPECT_EQ(share.cores, 16U);
  EXPECT_EQ(share.dram_available, 120 * GiB);
  ASSERT_EQ(share.nodes.size(), 1U) << "DRAM is one tier";
  EXPECT_EQ(share.nodes[0].capacity, 128 * GiB);
  EXPECT_EQ(share.nodes[0].update_elements_per_second, 2e9);
  EXPECT_EQ(share.paths[0].read_bytes_per_second, 1.5e9);
  EXPECT_EQ(share.paths[0].capacity, 1000 * GiB);
  EXPECT_EQ(share.network, 6.25e9);
  EXPECT_EQ(share.update_elements_per_second, 1e9) << "of a thread";
}

TEST(ProcessShare, LeavesEachAGpuAndItsLinkAsFarAsMemoryAllows) {
  const auto share = process_share(node_of_four(), 4);
  ASSERT_EQ(share.gpus.size(), 1U);
  EXPECT_EQ(share.gpus[0].memory, 80 * GiB);
  EXPECT_EQ(share.gpus[0].to_gpu_bytes_per_second, 30e9) << "four of them read 120 GB/s of memory";
  EXPECT_EQ(share.gpus[0].from_gpu_bytes_per_second, 40e9);
  EXPECT_TRUE(share.gpus[0].links.empty());
}

TEST(ProcessShare, InsideAMachineMemoryIsCopied) {
  auto profile = node_of_four();
  EXPECT_EQ(inside_rate(profile), 200e9);
  profile.copy_bytes_per_second = 8e9;
  EXPECT_EQ(inside_rate(profile), 8e9);
  profile = {};
  EXPECT_EQ(inside_rate(profile), 0);
}

}  // namespace
}  // namespace spillway::plan
