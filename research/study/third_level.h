// Optimizer states on drives, weights on the devices: ZeRO-3 with NVMe, and MLP-Offload (arXiv 2509.02480, section 3).
// How both fill subgroups and buffers is that of DeepSpeed 0.13 and was checked against the released logs
// (github.com/mauryaavinash95/MLP-Offload, logs/): parameters, subgroups and the largest of them, by model.
#pragma once

#include <vector>

#include "research/study/hardware.h"
#include "research/study/shape.h"

namespace spillway::study {

struct ThirdLevelWork {
  DecoderShape shape;
  double tokens = 0;        ///< of a step, all devices together
  double subgroup = 1e8;    ///< elements of a device with which a subgroup is full
  unsigned buffers = 1;     ///< >= 1, of a device, each of the largest subgroup in fp32; MLP-Offload: half for a path
  double layer_second = 0;  ///< what a pass takes of a layer besides its operations: launches, gathering its weights
};

/// Seconds.
struct IterationTimes {
  double forward = 0, backward = 0, update = 0;
  double first_wait = 0;  ///< of the update: until the first subgroup that is read is there
  [[nodiscard]] double total() const noexcept { return forward + backward + update; }
};

/// Elements of each subgroup on one of `devices`: whole tensors in the order of the model, until one is full.
[[nodiscard]] std::vector<double> subgroups_of(const ThirdLevelWork& work, double devices);

/// Elements of each buffer in which gradients leave one of `devices` during backward: whole tensors, the last first,
/// as many as fit. Norms are too small to be written.
[[nodiscard]] std::vector<double> gradient_buffers(const ThirdLevelWork& work, double devices);

/// Everything on the first drive. Backward writes fp32 gradients (4 bytes a parameter) through the buffers; when all
/// are in use it waits until all are written, so what is left at its end is written while the update waits for its
/// first subgroup. The update reads weights, moments and gradients in fp32 (16) and writes weights and moments (12),
/// one subgroup in flight in each direction.
[[nodiscard]] IterationTimes zero3_iteration(const Hardware& hardware, const ThirdLevelWork& work);

/// Every `every`-th subgroup on the second drive; gradients stay in bf16 in host memory; the order turns around each
/// iteration, so that the subgroups which a path's buffers hold at the end of one pass, three buffers each, are the
/// first of the next and are not moved.
[[nodiscard]] IterationTimes mlp_offload_iteration(const Hardware& hardware, const ThirdLevelWork& work,
                                                   unsigned every = 3);

}  // namespace spillway::study
