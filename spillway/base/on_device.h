// Functions that a GPU's kernels share with the host: one source, so that both give the same bits.
#pragma once

#ifdef __CUDACC__
#define SPILLWAY_ON_DEVICE __host__ __device__
#else
#define SPILLWAY_ON_DEVICE
#endif
