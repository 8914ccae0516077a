"""Parts of a step's loss: the log-probabilities of label tokens, and the weight of each of them.

Head's second pass needs nothing of a loss but, of each label token, minus d loss / d log-probability. Of cross-entropy
that is one number for all of them; of a preference one for each row, known when the first pass has seen every slice of
the vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from spillway.model.batches.microbatch import MicroBatch, Work

if TYPE_CHECKING:
    from spillway.model.head.head import Stats

Weights = Sequence[tuple[slice, float | torch.Tensor]]
# figures of a micro-batch besides its loss, by name; a pair is a sum and the number of its terms
Told = dict[str, Any]


class Objective(Protocol):
    """The objective of one step or evaluation. `stats`: by its index, every micro-batch that has label tokens, all
    slices seen."""

    # what it wants of Stats: "mean", "entropy", "accuracy", "undivided", or "scores" alone
    watches: Collection[str]

    @property
    def temperature(self) -> float:
        """The divisor of all logits."""

    def losses(self, stats: Mapping[int, Stats]) -> list[float]:
        """The exact terms of the loss over the work's units, by micro-batch."""

    def weights(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> Weights:
        """Runs of a micro-batch's label tokens, and `scale` times what each token of a run weighs: one number for all
        of them, or a tensor of one each."""

    def list_figures(self, stats: Mapping[int, Stats]) -> list[Told]:
        """The objective's other figures, by micro-batch."""

    def score_gradient(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> torch.Tensor:
        """[label tokens, labels], where `watches` has "scores": `scale` times d loss / d scores."""


class OfTokens:
    """An objective of log-probabilities of tokens."""

    @property
    def temperature(self) -> float:
        return 1.0

    def score_gradient(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> torch.Tensor:
        raise AssertionError("its loss is not of scores")


class OfLogits(OfTokens, ABC):
    """An objective of the logits of label tokens, which it sees slice by slice in both passes of the head."""

    watches: Collection[str] = ()

    @abstractmethod
    def add_logits(self, batch: MicroBatch, tokens: slice, logits: torch.Tensor, first_row: int) -> None:
        """Takes in a slice of the first pass: [tokens, rows] of these label tokens of a micro-batch."""

    @abstractmethod
    def weigh(self, scale: float) -> float:
        """`scale` times what each label token weighs."""

    @abstractmethod
    def differentiate(
        self, batch: MicroBatch, tokens: slice, logits: torch.Tensor, first_row: int, stats: Stats, weight: float
    ) -> None:
        """In place: `weight` times d loss / d logits of a slice [tokens, rows] of the second pass. `stats`: of these
        tokens."""

    def weights(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> list[tuple[slice, float]]:
        return [(slice(None), self.weigh(scale))]


Choice = Callable[[Work, bool], Objective]  # of a piece of work, and whether it trains


class CrossEntropy(OfTokens):
    """The mean over label tokens."""

    def __init__(self, work: Work, training: bool = True, watches: Collection[str] = ()) -> None:
        self.watches = watches
        self._units, self._batches = max(1, work.units), work.micro_batches

    def losses(self, stats: Mapping[int, Stats]) -> list[float]:
        return [stats[each.index].loss() if each.index in stats else 0.0 for each in self._batches]

    def weights(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> list[tuple[slice, float]]:
        return [(slice(None), scale / self._units)]

    def list_figures(self, stats: Mapping[int, Stats]) -> list[Told]:
        each = [stats.get(batch.index) for batch in self._batches]
        return [accuracy(of) | (entropy(of) if "entropy" in self.watches else {}) for of in each]


class MicroBatchMeans(CrossEntropy):
    """The mean over a step's micro-batches of each one's mean over label tokens, which transformers' Trainer computes
    if the model does not count label tokens itself."""

    def __init__(self, work: Work, training: bool = True, watches: Collection[str] = ()) -> None:
        super().__init__(work, training, watches)
        self._training, self._count = training, work.step_batches

    def losses(self, stats: Mapping[int, Stats]) -> list[float]:
        sums = super().losses(stats)
        if not self._training:
            return sums
        return [self._units * loss / self._divisor(batch) for loss, batch in zip(sums, self._batches, strict=True)]

    def weights(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> list[tuple[slice, float]]:
        return [(slice(None), scale / self._divisor(batch))]

    def _divisor(self, batch: MicroBatch) -> int:
        return self._count * max(1, batch.units)


class RowSums(OfTokens):
    """No loss: the log-probability of each row's label tokens; of sampled rows that of each token."""

    watches: Collection[str] = ()

    def __init__(self, work: Work, training: bool = False, temperature: float = 1.0) -> None:
        self._batches, self._temperature = work.micro_batches, temperature
        self.rows: list[list[float]] = []  # by micro-batch

    @property
    def temperature(self) -> float:
        return self._temperature

    def losses(self, stats: Mapping[int, Stats]) -> list[float]:
        self.rows = [
            row_sums(batch, stats.get(batch.index)) if batch.sampled is None else each_token(stats.get(batch.index))
            for batch in self._batches
        ]
        return [0.0] * len(self._batches)

    def numbered(self) -> list[tuple[int, list[float]]]:
        """`rows`, each with its micro-batch's place in the data's order."""
        return [(batch.number, rows) for batch, rows in zip(self._batches, self.rows, strict=True)]

    def weights(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> list[tuple[slice, float]]:
        return []

    def list_figures(self, stats: Mapping[int, Stats]) -> list[Told]:
        return [{} for _ in self._batches]


def accuracy(stats: Stats | None, tokens: slice = slice(None)) -> Told:
    """How often the label is the likeliest token. `stats`: None where there are no label tokens."""
    likeliest = None if stats is None else (stats.gold == stats.maximum)[tokens]
    share = 0.0 if likeliest is None or not likeliest.numel() else float(likeliest.double().mean())
    return {"mean_token_accuracy": share}


def entropy(stats: Stats | None, tokens: slice = slice(None)) -> Told:
    """The mean over label tokens of the entropy of what is predicted for them, in nats. `stats` as in `accuracy`."""
    entropies = None if stats is None else stats.entropy()[tokens]
    return {"entropy": 0.0 if entropies is None or not entropies.numel() else float(entropies.mean())}


def row_sums(batch: MicroBatch, stats: Stats | None) -> list[float]:
    """The log-probability of each row's label tokens together. `stats`: None where there are none."""
    return run_sums(batch.runs, stats)


def each_token(stats: Stats | None) -> list[float]:
    """The log-probabilities of all label tokens. `stats`: None where there are none."""
    return [] if stats is None else [float(value) for value in stats.log_probabilities().cpu()]


def run_sums(runs: Sequence[slice], stats: Stats | None) -> list[float]:
    """The log-probabilities of runs of label tokens, each summed. `stats`: None where there are none."""
    if stats is None:
        return [0.0] * len(runs)
    tokens = stats.log_probabilities().cpu()
    return [float(tokens[run].sum()) for run in runs]
