// What a step holds at once on a device and beside it in host memory, before anything is resident. Bytes.
#pragma once

#include <map>
#include <string>

#include "spillway/plan/model_sizes.h"

namespace spillway::plan {

/// Layers whose weights are on a device at once: one computes, the next arrives.
inline constexpr double kWeightWindow = 2;
/// Elements of states that are read, updated and written together; and how many of them are in memory at once.
inline constexpr double kPiece = 32 * 1024 * 1024;
inline constexpr double kPiecesInFlight = 5;
/// What a process holds beside the engine's memory: interpreter, PyTorch and its device libraries on the host. An
/// estimate; on this machine it is measured instead.
inline constexpr double kProcess = 1.5 * static_cast<double>(GiB);
/// Tokens of logits that are whole at once.
inline constexpr double kHeadSlice = 1024;

using ByClass = std::map<std::string, double>;

[[nodiscard]] double sum_of(const ByClass& classes);

/// Bytes per token of a layer's recomputed forward pass and its backward, attention in tiles: inputs of the norms,
/// queries, keys, values and their gradients, five arrays of the feed-forward's width. An estimate from the Llama
/// family's layer; docs/how-to/plan-elsewhere.md says more.
[[nodiscard]] double work_bytes_per_token(const ModelSizes& model, const DeviceWork& work);

/// On one device: "weights in flight", "gradients in flight", "working set", "activations in flight", "head".
[[nodiscard]] ByClass device_memory(const ModelSizes& model, const DeviceWork& work);

/// On the host, for `devices` of them. `paths`: something is read from or written to drives.
[[nodiscard]] ByClass host_memory(const ModelSizes& model, const DeviceWork& work, double devices, bool paths);

/// On a machine without a device: the host's and the working set.
[[nodiscard]] ByClass host_only_memory(const ModelSizes& model, const DeviceWork& work, bool paths);

}  // namespace spillway::plan
