// A profile of a machine with one NUMA node and no GPU, as a measurement leaves it.
#pragma once

#include "spillway/machine/profile.h"

namespace spillway::machine::test {

inline Profile measured_profile() {
  Profile out;
  out.cores = 4;
  out.dram_total = 64 * GiB;
  out.nodes = {{.id = 0,
                .capacity = 64 * GiB,
                .update_elements_per_second = 2e9,
                .available = 60 * GiB,
                .cpus = "0-3",
                .read_bytes_per_second = 31e9,
                .write_bytes_per_second = 25e9,
                .copy_bytes_per_second = 20e9,
                .update_elements_per_second_thread = 1.1e9,
                .update_threads = 2,
                .tier = 4,
                .promised_read_bytes_per_second = 200e9,
                .promised_write_bytes_per_second = 100e9,
                .promised_latency_seconds = 1e-7}};
  out.access = {{.cpus = 0,
                 .memory = 0,
                 .distance = 10,
                 .read = {15e9, 31e9, 2},
                 .write = {13e9, 25e9, 2},
                 .copy = {11e9, 20e9, 2},
                 .update = {1.1e9, 2e9, 2}}};
  out.layers = {{.hidden = 896, .intermediate = 4864, .tokens = 1024, .flops_per_second = 3.5e12}};
  return out;
}

}  // namespace spillway::machine::test
