"""This machine as PyTorch and the engine use it: the compute device, NUMA nodes, threads, the process's memory, and the
measurements behind `spillway probe` and `compute_dtype: auto`."""
