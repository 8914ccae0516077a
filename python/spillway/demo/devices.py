"""The device of the tour's runs: the GPU that a run would take by itself, else the CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GPU_GIB = 1  # limit of a run: two run at once, and a small model would fill no GPU
LIBRARIES = "interpreter and libraries"  # a class of the plan's bytes


@dataclass(frozen=True)
class Device:
    name: str  # `device` of the configurations
    reason: str = ""  # of the choice, for a person; empty: the machine has no other device, or a person named it

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"

    def yaml(self) -> str:
        """Lines of a configuration."""
        limit = f"gpu_memory: {GPU_GIB}GiB\n" if self.is_gpu else ""
        return f"device: {self.name}\n{limit}"

    @property
    def memory(self) -> int:
        """Bytes of a GPU's memory that a run may take."""
        return GPU_GIB * 2**30 if self.is_gpu else 0

    def describe(self) -> str:
        limit = f" Each run has {GPU_GIB} GiB of its memory." if self.is_gpu else ""
        return f"Layers compute on {self.reason or self.name}.{limit}"


CPU = Device("cpu", "the CPUs")


def read_libraries(plan: Mapping[str, Any]) -> int:
    """Bytes that a process takes beside the state of a run, CUDA's libraries included."""
    return sum(int(part["bytes"]) for part in plan["bytes"] if part["class"] == LIBRARIES)
