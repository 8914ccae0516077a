"""Objectives whose loss is of the scores that a head of labels gives: TRL's of pairs, by which rewards are learned, and
transformers' of rows that are classified."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional

from spillway.model.batches.microbatch import MicroBatch, Work
from spillway.model.head.objective import Told
from spillway.model.source import hub
from spillway.model.source.labels import NUMBERS, SEVERAL, SINGLE, load_run_config

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.model.head.head import Stats


class ScoreLoss(Protocol):
    """The loss of one micro-batch's scores, [rows, labels] fp64."""

    def loss(self, scores: torch.Tensor, targets: torch.Tensor | None) -> torch.Tensor:
        """The mean over examples. `targets`: as Batch.targets."""

    def describe(self, scores: torch.Tensor) -> Told:
        """The figures that are logged."""


@dataclass(frozen=True)
class Ranking:
    """The loss of pairs of rewards, and what TRL's RewardTrainer logs of them (`objective: reward`). Scores of chosen
    rows come first."""

    center: float = 0.0  # the weight of the squares of the sums of both rewards

    @classmethod
    def from_config(cls, config: Config) -> Ranking:
        return cls(config.center_rewards_coefficient or 0.0)

    def loss(self, scores: torch.Tensor, targets: torch.Tensor | None) -> torch.Tensor:
        chosen, rejected = scores[:, 0].chunk(2)
        loss = -functional.logsigmoid(chosen - rejected - (0.0 if targets is None else targets)).mean()
        return loss + self.center * ((chosen + rejected) ** 2).mean() if self.center else loss

    def describe(self, scores: torch.Tensor) -> Told:
        chosen, rejected = scores[:, 0].chunk(2)
        return {
            "min_reward": float(scores.min()),
            "mean_reward": float(scores.mean()),
            "max_reward": float(scores.max()),
            "accuracy": float((chosen > rejected).double().mean()),
            "margin": float((chosen - rejected).mean()),
        }


@dataclass(frozen=True)
class Classification:
    """transformers' loss of rows that are classified, by the `problem_type` of a model's configuration."""

    problem: str

    @classmethod
    def read(cls, config: Config) -> Classification:
        if config.objective_entry.labels_words:
            return cls(SINGLE)
        return cls(load_run_config(config, hub.model_directory(config)).problem_type)

    def loss(self, scores: torch.Tensor, targets: torch.Tensor | None) -> torch.Tensor:
        assert targets is not None
        if self.problem == SINGLE:
            return functional.cross_entropy(scores, targets.view(-1))
        if self.problem == SEVERAL:
            return functional.binary_cross_entropy_with_logits(scores, targets.double())
        return functional.mse_loss(scores, targets.double().view(scores.shape))

    def describe(self, scores: torch.Tensor) -> Told:
        return {}

    def judge(self, scores: torch.Tensor, targets: torch.Tensor | None) -> Told:
        """How many labels are right, and how many there are; nothing for numbers."""
        assert targets is not None
        if self.problem == NUMBERS:
            return {}
        right = scores.argmax(1) == targets.view(-1) if self.problem == SINGLE else (scores > 0) == (targets > 0.5)
        return {"accuracy": (float(right.sum()), right.numel())}


@dataclass
class Scored:
    """The rows of one step or evaluation. A step's loss is the mean over its micro-batches of each one's mean."""

    temperature = 1.0
    loss: ScoreLoss
    work: Work
    training: bool
    sums: bool = False  # the sum over micro-batches, in place of the mean
    watches: Collection[str] = ("scores",)
    scores: dict[int, torch.Tensor] = field(default_factory=dict)  # by micro-batch's place in the data's order
    _gradients: dict[int, torch.Tensor] = field(default_factory=dict)  # by micro-batch: [rows, labels] fp64

    def losses(self, stats: Mapping[int, Stats]) -> list[float]:
        return [self._settle(stats, batch) for batch in self.work.micro_batches]

    def weights(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> list[tuple[slice, float]]:
        return []

    def score_gradient(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> torch.Tensor:
        if batch.index not in self._gradients:
            self._settle(stats, batch)
        return self._gradients[batch.index] * scale

    def list_figures(self, stats: Mapping[int, Stats]) -> list[Told]:
        return [self._describe(self._take(stats, batch), batch) for batch in self.work.micro_batches]

    def _describe(self, scores: torch.Tensor, batch: MicroBatch) -> Told:
        return self.loss.describe(scores)

    def _settle(self, stats: Mapping[int, Stats], batch: MicroBatch) -> float:
        """The micro-batch's part of the step's summed loss; keeps the gradient."""
        (part, whole), in_sum = self._weigh(batch)
        leaf = self._take(stats, batch).requires_grad_()
        with torch.enable_grad():
            loss = self.loss.loss(leaf, batch.targets)
            (gradient,) = torch.autograd.grad(loss, leaf)
        self._gradients[batch.index] = gradient * part / whole
        return float(loss.detach()) * in_sum

    def _weigh(self, batch: MicroBatch) -> tuple[tuple[int, int], float]:
        """The share of the micro-batch's mean in the step's loss, and its weight in the sum that is reported."""
        count = 1 if self.sums else self.work.step_batches
        return (1, count), (self.work.units / count if self.training else batch.units)

    def _take(self, stats: Mapping[int, Stats], batch: MicroBatch) -> torch.Tensor:
        """fp64 [rows, labels]"""
        scores = stats[batch.index].scores
        assert scores is not None
        self.scores[batch.number] = scores
        return scores.double().cpu()


@dataclass
class Labelled(Scored):
    """Rows or words with labels. A step's loss is the mean over all of its rows or words, in whatever micro-batches."""

    loss: Classification

    def _describe(self, scores: torch.Tensor, batch: MicroBatch) -> Told:
        return self.loss.judge(scores, batch.targets)

    def _weigh(self, batch: MicroBatch) -> tuple[tuple[int, int], float]:
        return (batch.units, self.work.units), batch.units
