"""Losses over the log-probabilities of whole rows, by TRL's definitions, and what TRL logs of them.

Everything here is of a few numbers for each row, in fp64; PyTorch differentiates the losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn.functional import logsigmoid

from spillway.model.objective import Told

if TYPE_CHECKING:
    from spillway.config import Config


@dataclass(frozen=True)
class Rows:
    """The rows of one micro-batch, [rows] each: the chosen ones, then as many rejected ones in the same order."""

    sums: torch.Tensor  # log-probabilities of completions
    tokens: torch.Tensor  # label tokens that they are sums of
    reference: torch.Tensor | None = None  # `sums` under the reference model

    @property
    def means(self) -> torch.Tensor:
        """Over label tokens."""
        return self.sums / self.tokens.clamp(min=1)


class RowLoss(Protocol):
    """A loss with the keys of a run."""

    def loss(self, rows: Rows) -> torch.Tensor:
        """The mean over the examples of one micro-batch."""

    def describe(self, rows: Rows) -> Told:
        """The figures that TRL logs. `rows` need no gradient."""


@dataclass(frozen=True)
class Pairs:
    """Log-probabilities of whole completions relative to the reference model's, [pairs] each, and label tokens."""

    chosen: torch.Tensor
    rejected: torch.Tensor
    chosen_tokens: torch.Tensor
    rejected_tokens: torch.Tensor

    @property
    def delta(self) -> torch.Tensor:
        return self.chosen - self.rejected

    @property
    def mean_delta(self) -> torch.Tensor:
        """The difference of the means over label tokens."""
        return self.chosen / self.chosen_tokens.clamp(min=1) - self.rejected / self.rejected_tokens.clamp(min=1)


def robust(pairs: Pairs, beta: float, smoothing: float) -> torch.Tensor:
    scores = beta * pairs.delta
    return ((smoothing - 1) * logsigmoid(scores) + smoothing * logsigmoid(-scores)) / (1 - 2 * smoothing)


# TRL's names; a loss for each pair, of (pairs, beta, label_smoothing)
LOSSES: dict[str, Callable[[Pairs, float, float], torch.Tensor]] = {
    "sigmoid": lambda pairs, beta, _: -logsigmoid(beta * pairs.delta),
    "hinge": lambda pairs, beta, _: torch.relu(1 - beta * pairs.delta),
    "ipo": lambda pairs, beta, _: (pairs.mean_delta - 1 / (2 * beta)) ** 2,
    "robust": robust,
    "sigmoid_norm": lambda pairs, beta, _: -logsigmoid(beta * pairs.mean_delta),
    "apo_zero": lambda pairs, beta, _: 1 - torch.sigmoid(beta * pairs.chosen) + torch.sigmoid(beta * pairs.rejected),
    "apo_down": lambda pairs, beta, _: torch.sigmoid(beta * pairs.chosen) + 1 - torch.sigmoid(beta * pairs.delta),
}


@dataclass(frozen=True)
class Preference:
    """Direct preference optimisation (`objective: dpo`)."""

    loss_type: str = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0

    @classmethod
    def of(cls, config: Config) -> Preference:
        return cls(config.loss_type, config.beta, config.label_smoothing)

    def loss(self, rows: Rows) -> torch.Tensor:
        return LOSSES[self.loss_type](self.pairs(rows), self.beta, self.label_smoothing).mean()

    def pairs(self, rows: Rows) -> Pairs:
        assert rows.reference is not None
        return Pairs(*(rows.sums - rows.reference).chunk(2), *rows.tokens.chunk(2))

    def describe(self, rows: Rows) -> Told:
        pairs = self.pairs(rows)
        return describe_rewards(self.beta * pairs.chosen, self.beta * pairs.rejected, rows.sums)


def describe_rewards(chosen: torch.Tensor, rejected: torch.Tensor, log_probabilities: torch.Tensor) -> Told:
    """The rewards of pairs, and the log-probabilities of their completions, as TRL logs them."""
    of_chosen, of_rejected = log_probabilities.chunk(2)
    return {
        "rewards/chosen": float(chosen.mean()),
        "rewards/rejected": float(rejected.mean()),
        "rewards/accuracies": float((chosen > rejected).double().mean()),
        "rewards/margins": float((chosen - rejected).mean()),
        "logps/chosen": float(of_chosen.mean()),
        "logps/rejected": float(of_rejected.mean()),
    }


# by objective, the loss with the keys of a configuration
ROW_LOSSES: dict[str, Callable[[Config], RowLoss]] = {"dpo": Preference.of}
