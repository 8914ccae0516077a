"""What a run computes with: PyTorch's device, and the threads of computing and of updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spillway.machine import device, threads
from spillway.machine.place import Place
from spillway.machine.threads import Threads

if TYPE_CHECKING:
    from spillway.config import Config


@dataclass(frozen=True)
class Compute:
    place: Place
    threads: Threads

    @property
    def gpu(self) -> int | None:
        """Its number; None: host memory."""
        return self.place.device.index if self.place.on_gpu else None

    @property
    def update_cores(self) -> int:
        """Cores that only updates use: all but two when a GPU computes, which are for the caller and for copies."""
        cores = self.threads.update_cores
        return max(1, self.threads.compute + cores - 2) if self.place.on_gpu else cores


def compute(config: Config, processes: int = 1) -> Compute:
    """InputError where the GPU is not there. Tells PyTorch how many threads it has. `processes`: of the run on this
    machine."""
    return Compute(device.place(config), threads.settle(processes))
