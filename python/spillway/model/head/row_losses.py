"""Losses over the log-probabilities of whole rows, by TRL's definitions, and what TRL logs of them.

Everything here is of a few numbers for each row, in fp64; PyTorch differentiates the losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch.nn.functional import logsigmoid

from spillway.model.head.objective import Told

if TYPE_CHECKING:
    from spillway.config import Config


@dataclass(frozen=True)
class Rows:
    """The rows of one micro-batch, [rows] each: the chosen ones, then as many rejected ones in the same order; or with
    `verdicts` answers, then their prompts with other answers."""

    sums: torch.Tensor  # log-probabilities of completions
    tokens: torch.Tensor  # label tokens that they are sums of
    reference: torch.Tensor | None = None  # `sums` under the reference model
    prompts: torch.Tensor | None = None  # log-probabilities of prompts; None: no prompt carries loss
    prompt_tokens: torch.Tensor | None = None
    verdicts: torch.Tensor | None = None  # [rows / 2] bool: answers come first, then as many mismatched rows

    @property
    def means(self) -> torch.Tensor:
        """Over label tokens."""
        return self.sums / self.tokens.clamp(min=1)

    @property
    def sides(self) -> dict[str, list[int]]:
        """The numbers of the rows that are good answers, and of those that are bad ones."""
        half = len(self.sums) // 2
        if self.verdicts is None:
            return {"chosen": list(range(half)), "rejected": list(range(half, 2 * half))}
        good = self.verdicts.tolist()
        sides = {"chosen": True, "rejected": False}
        return {side: [row for row in range(half) if good[row] == verdict] for side, verdict in sides.items()}

    @property
    def likelihood_loss(self) -> torch.Tensor:
        """The negative log-likelihood of the chosen rows, a mean over their label tokens, those of prompts too."""
        sums, tokens = self.sums, self.tokens
        if self.prompts is not None and self.prompt_tokens is not None:
            sums, tokens = sums + self.prompts, tokens + self.prompt_tokens
        return -sums.chunk(2)[0].sum() / tokens.chunk(2)[0].sum().clamp(min=1)


class RowLoss(Protocol):
    """A loss with the keys of a run."""

    watches: ClassVar[tuple[str, ...]]  # figures of label tokens: "mean" of their logits, "entropy", "accuracy"

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

    watches: ClassVar[tuple[str, ...]] = ("mean", "entropy", "accuracy")
    loss_type: str = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0

    @classmethod
    def from_config(cls, config: Config) -> Preference:
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


@dataclass(frozen=True)
class OddsRatio:
    """Odds ratio preference optimisation (`objective: orpo`)."""

    watches: ClassVar[tuple[str, ...]] = ("mean",)
    beta: float = 0.1

    @classmethod
    def from_config(cls, config: Config) -> OddsRatio:
        return cls(config.beta)

    def loss(self, rows: Rows) -> torch.Tensor:
        return rows.likelihood_loss - (self.beta * logsigmoid(self.log_odds(rows))).mean()

    def log_odds(self, rows: Rows) -> torch.Tensor:
        """The logarithm of the odds of each chosen completion over those of the rejected one."""
        chosen, rejected = rows.means.chunk(2)
        return (chosen - rejected) - (log_complement(chosen) - log_complement(rejected))

    def describe(self, rows: Rows) -> Told:
        chosen, rejected = (self.beta * rows.means).chunk(2)
        log_odds = self.log_odds(rows)
        return describe_rewards(chosen, rejected, rows.means) | {
            "nll_loss": float(rows.likelihood_loss),
            "log_odds_ratio": float(logsigmoid(log_odds).mean()),
            "log_odds_chosen": float(log_odds.mean()),
        }


def log_complement(logarithms: torch.Tensor) -> torch.Tensor:
    """log(1 - exp(x)) for x below 0."""
    return torch.where(
        logarithms < -math.log(2), torch.log1p(-torch.exp(logarithms)), torch.log(-torch.expm1(logarithms))
    )


@dataclass(frozen=True)
class Contrast:
    """Contrastive preference optimisation and SimPO (`objective: cpo`)."""

    watches: ClassVar[tuple[str, ...]] = ("mean",)
    loss_type: str = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0
    alpha: float = 1.0
    gamma: float = 0.5

    @classmethod
    def from_config(cls, config: Config) -> Contrast:
        return cls(config.loss_type, config.beta, config.label_smoothing, config.cpo_alpha, config.simpo_gamma)

    def loss(self, rows: Rows) -> torch.Tensor:
        chosen, rejected = self.scores(rows).chunk(2)
        loss = self.compare(chosen - rejected).mean()
        return loss + self.alpha * rows.likelihood_loss if self.alpha else loss

    def scores(self, rows: Rows) -> torch.Tensor:
        return rows.means if self.loss_type in ("ipo", "simpo") else rows.sums

    def compare(self, delta: torch.Tensor) -> torch.Tensor:
        """The loss of each pair, by the difference of its scores."""
        if self.loss_type == "ipo":
            return (delta - 1 / (2 * self.beta)) ** 2
        if self.loss_type == "hinge":
            return torch.relu(1 - self.beta * delta)
        margin = self.beta * delta - (self.gamma if self.loss_type == "simpo" else 0)
        return -(1 - self.label_smoothing) * logsigmoid(margin) - self.label_smoothing * logsigmoid(-margin)

    def describe(self, rows: Rows) -> Told:
        scores = self.scores(rows)
        chosen, rejected = (self.beta * scores).chunk(2)
        likelihood_loss = float(rows.likelihood_loss) if self.alpha else 0.0
        return describe_rewards(chosen, rejected, scores) | {"nll_loss": likelihood_loss}


@dataclass(frozen=True)
class Prospect:
    """Kahneman-Tversky optimisation (`objective: kto`)."""

    watches: ClassVar[tuple[str, ...]] = ("mean", "entropy")
    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    @classmethod
    def from_config(cls, config: Config) -> Prospect:
        return cls(config.beta, config.desirable_weight, config.undesirable_weight)

    def loss(self, rows: Rows) -> torch.Tensor:
        assert rows.verdicts is not None
        ratios, divergence = self.ratios(rows), self.divergence(rows)
        good = self.desirable_weight * (1 - torch.sigmoid(self.beta * (ratios - divergence)))
        bad = self.undesirable_weight * (1 - torch.sigmoid(self.beta * (divergence - ratios)))
        return torch.where(rows.verdicts, good, bad).mean()

    def ratios(self, rows: Rows, half: int = 0) -> torch.Tensor:
        """The log-probabilities of answers (1: of mismatched rows) relative to the reference model's."""
        assert rows.reference is not None
        return (rows.sums - rows.reference).chunk(2)[half]

    def divergence(self, rows: Rows) -> torch.Tensor:
        """The divergence from the reference model, estimated by mismatched rows; a constant of the loss."""
        return self.ratios(rows, 1).detach().mean().clamp(min=0)

    def describe(self, rows: Rows) -> Told:
        figures = {"kl": float(self.divergence(rows))}
        ratios = self.ratios(rows)
        for side, numbers in rows.sides.items():
            if numbers:
                figures[f"rewards/{side}"] = float(self.beta * ratios[numbers].mean())
                figures[f"logps/{side}"] = float(rows.sums[numbers].mean())
        if all(rows.sides.values()):
            figures["rewards/margins"] = figures["rewards/chosen"] - figures["rewards/rejected"]
        return figures


# by objective, the loss with the keys of a configuration
ROW_LOSSES: dict[str, Callable[[Config], RowLoss]] = {
    "dpo": Preference.from_config,
    "orpo": OddsRatio.from_config,
    "cpo": Contrast.from_config,
    "kto": Prospect.from_config,
}
