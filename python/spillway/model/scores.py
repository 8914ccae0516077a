"""Objectives whose loss is of the scores that a head of labels gives: TRL's of pairs, by which rewards are learned."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import logsigmoid

from spillway.model.microbatch import MicroBatch, Work
from spillway.model.objective import Told

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.model.head import Stats


@dataclass(frozen=True)
class Ranking:
    """The loss of pairs of rewards, and what TRL's RewardTrainer logs of them (`objective: reward`)."""

    center: float = 0.0  # the weight of the squares of the sums of both rewards

    @classmethod
    def of(cls, config: Config) -> Ranking:
        return cls(config.center_rewards_coefficient or 0.0)

    def loss(self, rewards: torch.Tensor, margins: torch.Tensor | None) -> torch.Tensor:
        """The mean over pairs. rewards: [rows], those of chosen rows first."""
        chosen, rejected = rewards.chunk(2)
        loss = -logsigmoid(chosen - rejected - (0.0 if margins is None else margins)).mean()
        return loss + self.center * ((chosen + rejected) ** 2).mean() if self.center else loss

    def describe(self, rewards: torch.Tensor) -> Told:
        chosen, rejected = rewards.chunk(2)
        return {
            "min_reward": float(rewards.min()),
            "mean_reward": float(rewards.mean()),
            "max_reward": float(rewards.max()),
            "accuracy": float((chosen > rejected).double().mean()),
            "margin": float((chosen - rejected).mean()),
        }


@dataclass
class Scored:
    """The rows of one step or evaluation, each with a reward. Means are those of `preference.Compared`."""

    loss: Ranking
    work: Work
    training: bool
    watches: Collection[str] = ("scores",)
    _gradients: dict[int, torch.Tensor] = field(default_factory=dict)  # by micro-batch: [rows, 1] fp64

    def losses(self, stats: Mapping[int, Stats]) -> list[float]:
        return [self._settle(stats, batch) for batch in self.work.micro_batches]

    def weights(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> list[tuple[slice, float]]:
        return []

    def score_gradient(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> torch.Tensor:
        if batch.index not in self._gradients:
            self._settle(stats, batch)
        return self._gradients[batch.index] * scale

    def told(self, stats: Mapping[int, Stats]) -> list[Told]:
        return [self.loss.describe(self._rewards(stats, batch)) for batch in self.work.micro_batches]

    def _settle(self, stats: Mapping[int, Stats], batch: MicroBatch) -> float:
        """The micro-batch's part of the step's summed loss; keeps the gradient."""
        count = self.work.step_batches
        leaf = self._rewards(stats, batch).requires_grad_()
        with torch.enable_grad():
            loss = self.loss.loss(leaf, batch.margins)
            (gradient,) = torch.autograd.grad(loss, leaf)
        self._gradients[batch.index] = gradient[:, None] / count
        return float(loss.detach()) * (self.work.units / count if self.training else batch.units)

    def _rewards(self, stats: Mapping[int, Stats], batch: MicroBatch) -> torch.Tensor:
        """fp64 [rows]"""
        scores = stats[batch.index].scores
        assert scores is not None
        return scores[:, 0].double().cpu()
