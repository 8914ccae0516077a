// What was measured of a machine: plain values, no I/O.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::machine {

/// Rates of one storage path through the engine, checksums included. 0 = unknown.
struct PathProfile {
  std::string name = "0";             ///< shown as path:NAME
  double read_bytes_per_second = 0;   ///< reads alone
  double write_bytes_per_second = 0;  ///< writes alone
  double mixed_bytes_per_second = 0;  ///< half reads, half writes at once: the sum of both directions
  double cores_at_full_speed = 0;     ///< CPUs that compute on all of them loses while both directions run
  Bytes capacity = 0;                 ///< for what a run keeps there; 0 = unknown

  bool operator==(const PathProfile&) const = default;
};

/// The path with rates in place of those that nobody has measured. Of a block device only reads are measured before it
/// is erased: writes count as fast as reads, and both directions at once share the time. A path without a read rate
/// stays.
[[nodiscard]] inline PathProfile assume_rates(PathProfile path) {
  if (path.read_bytes_per_second <= 0) return path;
  if (path.write_bytes_per_second <= 0) path.write_bytes_per_second = path.read_bytes_per_second;
  if (path.mixed_bytes_per_second <= 0) {
    path.mixed_bytes_per_second = 2 / (1 / path.read_bytes_per_second + 1 / path.write_bytes_per_second);
  }
  return path;
}

/// Kind of a NUMA node.
enum class MemoryKind : std::uint8_t {
  dram,
  cxl,  ///< a card without CPUs
};

/// A NUMA node. 0 = unknown, and of the transfers: bounded by the links alone.
struct NodeProfile {
  unsigned id = 0;  ///< shown as numa:ID
  MemoryKind kind = MemoryKind::dram;
  Bytes capacity = 0;                     ///< bytes
  double update_elements_per_second = 0;  ///< AdamW of exact states that lie there, as many threads as saturate it
  double to_gpus_bytes_per_second = 0;    ///< all transfers from it to GPUs together
  double from_gpus_bytes_per_second = 0;  ///< and the other way
  // The following are known of a node that was measured: the most that its best CPUs reach.
  Bytes available = 0;  ///< what could be taken when it was measured
  std::string cpus;     ///< its CPUs, as "0-3,8"
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  double copy_bytes_per_second = 0;              ///< bytes copied within it
  double update_elements_per_second_thread = 0;  ///< of one thread
  unsigned update_threads = 0;                   ///< that saturate it
  // What firmware and kernel say of it.
  int tier = 0;                               ///< the kernel's memory tier: a smaller number is faster memory
  double promised_read_bytes_per_second = 0;  ///< the firmware's table of attributes (HMAT)
  double promised_write_bytes_per_second = 0;
  double promised_latency_seconds = 0;  ///< of a read

  bool operator==(const NodeProfile&) const = default;
};

/// How a rate grows with threads, in any unit a second. 0 = unknown.
struct Saturation {
  double thread = 0;     ///< of one thread
  double most = 0;       ///< of as many as it takes
  unsigned threads = 0;  ///< that many: more are not 5 % faster

  bool operator==(const Saturation&) const = default;
};

/// What CPUs of one NUMA node reach on the memory of another. Bytes a second; of `update` elements a second.
struct NodeAccess {
  unsigned cpus = 0;    ///< the node whose CPUs work
  unsigned memory = 0;  ///< the node whose memory they work on
  int distance = 0;     ///< as the firmware says, 10 on one node; 0 = unknown
  Saturation read;
  Saturation write;
  Saturation copy;    ///< bytes copied, within that memory
  Saturation update;  ///< of the kind that was asked for

  bool operator==(const NodeAccess&) const = default;
};

/// Products of a layer of that shape, on the compute device.
struct LayerProfile {
  std::uint64_t hidden = 0;
  std::uint64_t intermediate = 0;
  std::uint64_t tokens = 0;          ///< of a micro-batch
  double flops_per_second = 0;       ///< of the product [tokens, hidden] x [hidden, intermediate] in bf16
  double fp32_flops_per_second = 0;  ///< the same in fp32; 0 = unknown

  bool operator==(const LayerProfile&) const = default;
};

/// The three products of a linear layer with a weight of [outer, inner] and so many tokens, on all CPUs.
struct ProductRate {
  std::uint64_t tokens = 0, inner = 0, outer = 0;
  double forward_flops_per_second = 0;  ///< [tokens, inner] x [inner, outer]
  double input_flops_per_second = 0;    ///< [tokens, outer] x [outer, inner], the gradient of the input
  double weight_flops_per_second = 0;   ///< [outer, tokens] x [tokens, inner], that of the weight

  bool operator==(const ProductRate&) const = default;
};

/// Causal attention over rows of so many tokens, on all CPUs. Operations are those of the pairs that the mask
/// leaves: half of all.
struct AttentionRate {
  std::uint64_t tokens = 0;
  double forward_flops_per_second = 0;
  double backward_flops_per_second = 0;  ///< of twice the operations of forward
  std::uint64_t head_size = 0;           ///< channels of a head; 0 = unknown

  bool operator==(const AttentionRate&) const = default;
};

/// An operation of PyTorch that is bound by memory, named as in ATen: `mul`, `silu_backward`, `copy`. Bytes are those
/// of all tensors that it reads or writes.
struct OperationRate {
  std::string operation;
  bool strided = false;     ///< a tensor of it has gaps, or another order than its elements in memory
  std::uint64_t bytes = 0;  ///< of the call that was measured
  double bytes_per_second = 0;

  bool operator==(const OperationRate&) const = default;
};

/// What PyTorch reaches on the CPUs in one type, by class of operation.
struct ComputeProfile {
  std::string dtype = "fp32";               ///< bf16, fp16 or fp32
  std::vector<ProductRate> products;        ///< at least one
  std::vector<AttentionRate> attention;     ///< none: as products
  double elementwise_bytes_per_second = 0;  ///< read and written by operations on each element; 0 = they take nothing
  std::vector<OperationRate> operations;    ///< the same by operation and size; none: at the one rate
  double call_seconds = 0;                  ///< of an operation on next to nothing; 0 = unknown
  Bytes libraries_bytes = 0;  ///< in memory once layers have computed, beside tensors: code, caches of products

  bool operator==(const ComputeProfile&) const = default;
};

/// Copies between a NUMA node and a GPU, as measured: each direction alone, and both at once. Bytes a second.
struct LinkProfile {
  unsigned node = 0;  ///< the NUMA node's number
  double to_gpu_bytes_per_second = 0;
  double from_gpu_bytes_per_second = 0;
  double to_gpu_bytes_per_second_together = 0;
  double from_gpu_bytes_per_second_together = 0;

  bool operator==(const LinkProfile&) const = default;
};

/// A GPU and its link. 0 = unknown; update and peer: there is none.
struct GpuProfile {
  std::string name = "0";                          ///< shown as gpu:NAME
  Bytes memory = 0;                                ///< bytes, of which
  Bytes reserved = 0;                              ///< for context, libraries and the allocator
  double flops_per_second = 0;                     ///< of bf16 products, as training reaches them
  double update_elements_per_second = 0;           ///< AdamW of exact states in its own memory
  double to_gpu_bytes_per_second = 0;              ///< of its link
  double from_gpu_bytes_per_second = 0;            ///< and the other way; both at once
  double peer_bytes_per_second = 0;                ///< from and to the other GPUs, each way
  std::vector<LinkProfile> links;                  ///< by NUMA node; nodes differ; empty: not measured
  double elementwise_bytes_per_second = 0;         ///< read and written by operations on each element; 0 = in `flops`
  double attention_forward_flops_per_second = 0;   ///< of the pairs that a causal mask leaves; 0 = as products
  double attention_backward_flops_per_second = 0;  ///< the same, deterministic, of twice as many; 0 = as products
  double call_seconds = 0;   ///< of the host, for each operation that it asks of the GPU; 0 = unknown
  bool shares_dram = false;  ///< its memory is the machine's DRAM

  bool operator==(const GpuProfile&) const = default;
};

struct Profile {
  std::string machine;                    ///< its name when it is another machine, described and not measured here
  std::vector<std::string> comment;       ///< where the numbers come from
  unsigned cores = 0;                     ///< CPUs this process may run on; 0 = unknown
  Bytes dram_total = 0;                   ///< of the machine, or of the cgroup where that is less
  Bytes dram_available = 0;               ///< what could be taken when it was measured
  std::vector<NodeProfile> nodes;         ///< ids differ; empty: one DRAM node
  std::vector<GpuProfile> gpus;           ///< names differ
  std::vector<PathProfile> paths;         ///< names differ
  double update_elements_per_second = 0;  ///< update on one thread, of the kind that was asked for; 0 = unknown
  double update_elements_per_second_all_cores = 0;  ///< the same on every CPU at once; 0 = unknown
  double update_elements_per_second_beside = 0;     ///< the same on one thread beside compute on all; 0 = unknown
  double compute_share_beside_update = 0;           ///< of its speed that compute keeps meanwhile; 0 = unknown
  double copy_bytes_per_second = 0;                 ///< bytes copied from DRAM to DRAM on one thread; 0 = unknown
  double compute_flops_per_second = 0;              ///< of the compute device; 0 = unknown
  unsigned machines = 0;                            ///< that are like this one and train one model; 0: this one alone
  double network = 0;                               ///< bytes per second to and from others, each way; 0 = unknown
  double network_latency = 0;                       ///< seconds that a transfer there takes beside its bytes
  std::vector<NodeAccess> access;                   ///< CPUs by memory, as measured; no pair twice
  std::vector<LayerProfile> layers;                 ///< rates of compute by layer shape
  std::vector<ComputeProfile> compute;              ///< the same by type and class of operation; types differ

  bool operator==(const Profile&) const = default;
};

}  // namespace spillway::machine
