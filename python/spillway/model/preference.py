"""Objectives whose loss is of the log-probabilities of whole rows: from what the head has seen to the weights of rows.

A row's label tokens all weigh the same: minus the derivative of the loss by the row's log-probability.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from spillway.model.microbatch import MicroBatch, Work
from spillway.model.objective import Choice, CrossEntropy, Told, accuracy, entropy, row_sums
from spillway.model.row_losses import ROW_LOSSES, RowLoss, Rows

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.model.head import Stats


def objective_of(config: Config) -> Choice:
    loss = ROW_LOSSES.get(config.objective)
    return CrossEntropy if loss is None else partial(Compared, loss(config))


@dataclass
class Compared:
    """The rows of one step or evaluation. A step's loss is the mean over its micro-batches of the mean over each one's
    examples, as accumulation has it; an evaluation's the mean over all examples."""

    loss: RowLoss
    work: Work
    training: bool
    watches: Collection[str] = ("mean", "entropy")
    _losses: list[float] = field(default_factory=list)  # by micro-batch
    _weights: dict[int, list[float]] | None = None  # by micro-batch: of each row
    _rows: list[Rows] = field(default_factory=list)  # by micro-batch

    def losses(self, stats: Mapping[int, Stats]) -> list[float]:
        self._settle(stats)
        return list(self._losses)

    def weights(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> list[tuple[slice, float]]:
        found = self._settle(stats)[batch.index]
        return [(run, scale * weight) for run, weight in zip(batch.runs, found, strict=True) if run.stop > run.start]

    def told(self, stats: Mapping[int, Stats]) -> list[Told]:
        self._settle(stats)
        batches = self.work.micro_batches
        return [
            self.loss.describe(rows) | completions(batch, stats.get(batch.index))
            for batch, rows in zip(batches, self._rows, strict=True)
        ]

    def _settle(self, stats: Mapping[int, Stats]) -> dict[int, list[float]]:
        if self._weights is None:
            self._weights = {}
            count = self.work.step_batches
            for batch in self.work.micro_batches:
                loss, weights = self._differentiate(batch, row_sums(batch, stats.get(batch.index)))
                self._losses.append(loss * (self.work.units / count if self.training else batch.units))
                self._weights[batch.index] = [weight / count for weight in weights]
        return self._weights

    def _differentiate(self, batch: MicroBatch, sums: list[float]) -> tuple[float, list[float]]:
        """The mean over a micro-batch's examples, and minus its derivative by each row's log-probability."""
        exact = torch.tensor(sums, dtype=torch.float64)
        if batch.reference is not None:
            exact = exact.to(batch.reference.dtype).double()  # so that equal ones stay equal
        tokens = torch.tensor([run.stop - run.start for run in batch.runs])
        self._rows.append(Rows(exact, tokens, batch.reference))
        leaf = exact.clone().requires_grad_()
        with torch.enable_grad():
            loss = self.loss.loss(Rows(leaf, tokens, batch.reference))
            (gradient,) = torch.autograd.grad(loss, leaf)
        return float(loss.detach()), (-gradient).tolist()


def completions(batch: MicroBatch, stats: Stats | None) -> Told:
    """What TRL logs of label tokens: logits of the whole vocabulary, the entropy of all, and how often a chosen one is
    the likeliest."""
    middle = batch.bounds[batch.rows // 2]
    if stats is None or stats.mean is None:
        return {}
    parts = {"logits/chosen": stats.mean[:middle], "logits/rejected": stats.mean[middle:]}
    found = {name: float(part.double().mean()) if part.numel() else 0.0 for name, part in parts.items()}
    return found | accuracy(stats, slice(middle)) | entropy(stats)
