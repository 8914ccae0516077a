"""DeepSpeed's optimizer swappers, and its asynchronous I/O, as its own optimizer uses them.

One group of parameters after the other is swapped in (fp32 master, moments and gradient: 16 bytes per parameter),
updated by DeepSpeed's CPU Adam and swapped out (12 bytes); the pipelined swapper reads one group ahead and writes one
behind. DeepSpeed (`pip install deepspeed`) is not a dependency.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29518"}

AIO = {
    "block_size": 1 << 20,
    "queue_depth": 16,
    "single_submit": False,
    "overlap_events": True,
    "intra_op_parallelism": 1,
}


def load() -> None:
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")


class Swapper:
    """`params` in groups of at most `group`, all state in files below `directory`."""

    def __init__(self, directory: Path, *, pipelined: bool, params: int, group: int, gradients: bool) -> None:
        import torch
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        from deepspeed.runtime.swap_tensor.partitioned_optimizer_swapper import PartitionedOptimizerSwapper
        from deepspeed.runtime.swap_tensor.pipelined_optimizer_swapper import PipelinedOptimizerSwapper

        self.buffers = (12 if pipelined else 5) - (0 if gradients else 3 if pipelined else 1)
        config = SimpleNamespace(buffer_count=self.buffers, pipeline_read=pipelined, pipeline_write=pipelined)
        count = -(-params // group)
        sizes = [params // count + (1 if i < params % count else 0) for i in range(count)]
        self.parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in sizes]
        self.sizes = sizes
        self.adam = DeepSpeedCPUAdam(self.parameters, lr=1e-5, weight_decay=0.01, adamw_mode=True)
        kind = PipelinedOptimizerSwapper if pipelined else PartitionedOptimizerSwapper
        self.swapper = kind(config, AIO, str(directory), self.adam, max(sizes), "cpu", torch.float32, None)
        self.staging = self.buffers * max(sizes) * 4
        self.gradients = gradients
        self.fill()

    def fill(self) -> None:
        """Masters, gradients, and with a first step the moments."""
        import torch

        source = torch.empty(max(self.sizes)).normal_(std=0.02)
        for number, (parameter, size) in enumerate(zip(self.parameters, self.sizes, strict=True)):
            parameter.ds_id = f"group{number}"
            parameter.data = source[:size]
            self.swapper.initialize_parameters([parameter], [parameter])
        if self.gradients:
            for parameter, size in zip(self.parameters, self.sizes, strict=True):
                self.swapper.swap_out_gradients(parameter, [0], [source[:size]])
            self.swapper.flush_gradients()
        self.resting = source[:1]
        self.spare = None if self.gradients else source
        self.step()

    def step(self) -> float:
        """Seconds from the first read to the end of the last write."""
        begin = time.perf_counter()
        for number, parameter in enumerate(self.parameters):
            following = self.parameters[number + 1] if number + 1 < len(self.parameters) else None
            self.swapper.swap_in_optimizer_state(parameter, following)
            if self.spare is not None:
                parameter.grad = self.spare[: self.sizes[number]]
            self.adam.param_groups[0]["params"] = [parameter]
            self.adam.step()
            self.swapper.swap_out_optimizer_state(parameter, following is not None)
            parameter.grad = None
        return time.perf_counter() - begin


class Transfers:
    """Whole files of `request` bytes each, read or written by the asynchronous handle."""

    def __init__(self, directory: Path, request: int, count: int) -> None:
        import torch
        from deepspeed.ops.op_builder import AsyncIOBuilder

        self.op = AsyncIOBuilder().load()
        self.files = [directory / f"transfer{i}.data" for i in range(count)]
        self.request = request
        self.owner = self.op.aio_handle()
        self.buffer: Any = self.owner.new_cpu_locked_tensor(request, torch.empty(0, dtype=torch.uint8))
        self.buffer.random_(0, 256)
        self.handle = self.owner
        self.rate("write")

    def use(self, settings: dict[str, Any]) -> None:
        self.handle = self.op.aio_handle(**settings)

    def rate(self, pattern: str) -> float:
        """Bytes per second of one request after the other over all files."""
        begin = time.perf_counter()
        for file in self.files:
            start = self.handle.async_pread if pattern == "read" else self.handle.async_pwrite
            if start(self.buffer, str(file), 0) != 0 or self.handle.wait() != 1:
                raise SystemExit(f"DeepSpeed did not {pattern} {file}")
        return self.request * len(self.files) / (time.perf_counter() - begin)
