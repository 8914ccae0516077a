"""Objectives whose loss is of the log-probabilities of whole rows: from what the head has seen to the weights of rows.

The label tokens of a completion all weigh the same: minus the derivative of the loss by their log-probability. So do
those of a prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from spillway.model.batches.microbatch import MicroBatch, Work
from spillway.model.head.distillation import Distilled, Divergence
from spillway.model.head.objective import Choice, CrossEntropy, OfTokens, Told, accuracy, entropy, run_sums
from spillway.model.head.policy import Policy, PolicyLoss
from spillway.model.head.row_losses import ROW_LOSSES, RowLoss, Rows
from spillway.model.head.scores import Classification, Labelled, Ranking, Scored

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.model.head.head import Stats


def objective_of(config: Config) -> Choice:
    if config.objective_entry.is_labelled:
        return partial(Labelled, Classification.read(config))
    if config.objective_entry.labels:
        return partial(Scored, Ranking.from_config(config))
    if config.objective_entry.has_teacher:
        return partial(Distilled, Divergence.from_config(config))
    if config.objective_entry.is_sampled:
        return partial(Policy, PolicyLoss.from_config(config))
    loss = ROW_LOSSES.get(config.objective)
    return CrossEntropy if loss is None else partial(Compared, loss(config))


@dataclass
class Compared(OfTokens):
    """The rows of one step or evaluation. A step's loss is the mean over its micro-batches of the mean over each one's
    examples, as accumulation has it; an evaluation's the mean over all examples."""

    loss: RowLoss
    work: Work
    training: bool
    watches: Collection[str] = field(init=False)
    _losses: list[float] = field(default_factory=list)  # by micro-batch
    _weights: dict[int, list[tuple[slice, float]]] | None = None  # by micro-batch: of runs of label tokens
    _rows: list[Rows] = field(default_factory=list)  # by micro-batch

    def __post_init__(self) -> None:
        self.watches = self.loss.watches

    def losses(self, stats: Mapping[int, Stats]) -> list[float]:
        self._settle(stats)
        return list(self._losses)

    def weights(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> list[tuple[slice, float]]:
        weights = self._settle(stats)[batch.index]
        return [(run, scale * weight) for run, weight in weights if run.stop > run.start]

    def list_figures(self, stats: Mapping[int, Stats]) -> list[Told]:
        self._settle(stats)
        batches = self.work.micro_batches
        return [
            self.loss.describe(rows) | describe_tokens(batch, rows, stats.get(batch.index), self.watches)
            for batch, rows in zip(batches, self._rows, strict=True)
        ]

    def _settle(self, stats: Mapping[int, Stats]) -> dict[int, list[tuple[slice, float]]]:
        if self._weights is None:
            self._weights = {}
            count = self.work.step_batches
            for batch in self.work.micro_batches:
                loss, weights = self._differentiate(batch, stats.get(batch.index))
                self._losses.append(loss * (self.work.units / count if self.training else batch.units))
                self._weights[batch.index] = [(run, weight / count) for run, weight in weights]
        return self._weights

    def _differentiate(self, batch: MicroBatch, stats: Stats | None) -> tuple[float, list[tuple[slice, float]]]:
        """The mean over a micro-batch's examples, and runs of label tokens with minus its derivative by the
        log-probability of each."""
        prompts, completions = batch.parts
        runs = completions + prompts if batch.prompts else completions
        sums = torch.tensor(run_sums(runs, stats), dtype=torch.float64)
        if batch.reference is not None:
            sums = sums.to(batch.reference.dtype).double()  # so that equal ones stay equal
        tokens = torch.tensor([run.stop - run.start for run in runs])
        self._rows.append(make_rows(batch, sums, tokens))
        leaf = sums.clone().requires_grad_()
        with torch.enable_grad():
            loss = self.loss.loss(make_rows(batch, leaf, tokens))
            (gradient,) = torch.autograd.grad(loss, leaf)
        weights = zip(runs, (-gradient).tolist(), strict=True)
        return float(loss.detach()), sorted(weights, key=lambda each: each[0].start)


def make_rows(batch: MicroBatch, sums: torch.Tensor, tokens: torch.Tensor) -> Rows:
    """`sums`, `tokens`: of completions, and then of prompts if these carry loss."""
    rows = batch.rows
    if not batch.prompts:
        return Rows(sums, tokens, batch.reference, verdicts=batch.verdicts)
    return Rows(sums[:rows], tokens[:rows], batch.reference, sums[rows:], tokens[rows:], batch.verdicts)


def describe_tokens(batch: MicroBatch, rows: Rows, stats: Stats | None, watches: Collection[str]) -> Told:
    """Figures that TRL logs of the label tokens of completions: logits of the whole vocabulary, their entropy, and how
    often a chosen one is the likeliest."""
    if stats is None or stats.mean is None:
        return {}
    _, runs = batch.parts
    figures: Told = {}
    for side, numbers in rows.sides.items():
        if numbers:
            part = torch.cat([stats.mean[runs[row]] for row in numbers])
            figures[f"logits/{side}"] = float(part.double().mean()) if part.numel() else 0.0
    answers = slice(batch.bounds[max(row for numbers in rows.sides.values() for row in numbers) + 1])
    if "accuracy" in watches:
        figures |= accuracy(stats, slice(batch.bounds[batch.rows // 2]))
    return figures | (entropy(stats, answers) if "entropy" in watches else {})
