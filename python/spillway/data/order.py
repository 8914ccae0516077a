"""Which rows each step takes: a pure function of the configuration and the number of rows.

Epoch e visits the rows in the order of torch.randperm seeded with data_seed + e, or in file order. No step crosses an
epoch; an epoch's last micro-batch and last step take what remains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass
class Order:
    """The run's steps, numbered from 0."""

    rows: int
    batch: int  # rows in a micro-batch
    accumulation: int  # micro-batches in a step
    data_seed: int
    is_sequential: bool = False  # every epoch takes the rows in file order
    iterations: int = 1  # consecutive steps that take the same rows, in file order; `rows` counts each as often
    _epoch: int = field(default=-1, init=False, repr=False)
    _permutation: NDArray[np.int64] = field(init=False, repr=False, default_factory=lambda: np.empty(0, np.int64))

    @property
    def micro_batches_per_epoch(self) -> int:
        return math.ceil(self.rows / self.batch)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.micro_batches_per_epoch / self.accumulation)

    def steps(self, max_steps: int, num_train_epochs: float) -> int:
        """Steps of the whole run, as transformers counts them."""
        return max_steps if max_steps > 0 else math.ceil(num_train_epochs * self.steps_per_epoch)

    def epoch_after(self, steps: int) -> float:
        """How many epochs `steps` steps are, counted in micro-batches."""
        epoch, step = divmod(steps, self.steps_per_epoch)
        return epoch + step * self.accumulation / self.micro_batches_per_epoch

    def ends_epoch(self, steps: int) -> bool:
        return steps > 0 and steps % self.steps_per_epoch == 0

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        if epoch != self._epoch:
            import torch

            generator = torch.Generator().manual_seed(self.data_seed + epoch)
            shuffled = torch.randperm(self.rows, generator=generator).numpy()
            self._permutation = self.in_file_order() if self.is_sequential else shuffled
            self._epoch = epoch
        return self._permutation

    def in_file_order(self) -> NDArray[np.int64]:
        """Every row of an epoch; with `iterations` above 1 rows fill whole steps."""
        rows = np.arange(self.rows // self.iterations, dtype=np.int64)
        if self.iterations == 1:
            return rows
        return np.repeat(rows.reshape(-1, self.batch * self.accumulation), self.iterations, axis=0).ravel()

    def step(self, index: int) -> list[NDArray[np.int64]]:
        """Row indices of each micro-batch of step `index`."""
        epoch, step = divmod(index, self.steps_per_epoch)
        order = self.permutation(epoch)
        first = step * self.accumulation
        last = min(first + self.accumulation, self.micro_batches_per_epoch)
        return [order[part * self.batch : (part + 1) * self.batch] for part in range(first, last)]


def in_file_order(rows: int, batch: int) -> list[NDArray[np.int64]]:
    """Every row once, in micro-batches: what an evaluation reads."""
    return [np.arange(first, min(first + batch, rows), dtype=np.int64) for first in range(0, rows, batch)]
