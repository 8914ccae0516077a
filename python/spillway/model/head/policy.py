"""Group relative policy optimisation (`objective: grpo`) by TRL's definitions: from the log-probabilities of sampled
tokens to the weight of each.

Everything here is of one number for each token, in fp64; PyTorch differentiates the losses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from spillway.model.batches.microbatch import MicroBatch, Work
from spillway.model.head.objective import OfTokens, Told, Weights, entropy

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.model.batches.batch import Sampled
    from spillway.model.head.head import Stats


SAMPLING = "sampling/sampling_logp_difference"


@dataclass(frozen=True)
class Tokens:
    """The sampled tokens of one micro-batch, row by row."""

    log_probabilities: torch.Tensor  # fp64 [tokens]
    counts: torch.Tensor  # int64 [rows]: tokens of each row
    sampled: Sampled
    reference: torch.Tensor | None = None  # fp64 [tokens]: under the reference model
    undivided: torch.Tensor | None = None  # fp64 [tokens]: of logits that no temperature divides, where it was asked

    @property
    def rows(self) -> torch.Tensor:
        """int64 [tokens]: the row of each."""
        return torch.repeat_interleave(torch.arange(len(self.counts)), self.counts)

    @property
    def advantages(self) -> torch.Tensor:
        """[tokens]"""
        return self.sampled.advantages[self.rows]

    def row_sums(self, values: torch.Tensor) -> torch.Tensor:
        """[rows]: the sums of a number of each token."""
        return torch.zeros(len(self.counts), dtype=torch.float64).index_add(0, self.rows, values.double())

    def row_means(self, values: torch.Tensor) -> torch.Tensor:
        """[rows]; 0 for a row without tokens."""
        return self.row_sums(values) / self.counts.clamp(min=1)


@dataclass(frozen=True)
class PolicyLoss:
    """The loss with the keys of a run."""

    kind: str = "dapo"
    low: float = 0.2
    high: float = 0.2
    beta: float = 0.0
    by_sequence: bool = False
    corrects: bool = True  # the divergence weighs by the ratio, since the older policy sampled
    longest: int = 256  # tokens that `dr_grpo` divides the loss of a completion by
    temperature: float = 1.0  # that completions were sampled with, and that divides the logits of the loss

    @classmethod
    def from_config(cls, config: Config) -> PolicyLoss:
        high = config.epsilon if config.epsilon_high is None else config.epsilon_high
        by_sequence = config.importance_sampling_level == "sequence"
        return cls(
            config.loss_type, config.epsilon, high, config.beta, by_sequence, config.use_bias_correction_kl,
            config.max_completion_length, config.temperature,
        )  # fmt: skip

    def loss(self, tokens: Tokens, step_tokens: float) -> torch.Tensor:
        """The loss of one micro-batch, whose mean over micro-batches is that of the step. `step_tokens`: sampled tokens
        of the step for each of its micro-batches."""
        ratios, advantages = self.ratios(tokens), tokens.advantages
        losses = -torch.min(ratios * advantages, ratios.clamp(1 - self.low, 1 + self.high) * advantages)
        if self.beta:
            losses = losses + self.beta * self.divergences(tokens)
        if self.kind == "grpo":
            return tokens.row_means(losses).mean()
        divisors = {
            "bnpo": float(losses.numel()),
            "dr_grpo": float(len(tokens.counts) * self.longest),
            "dapo": step_tokens,
        }
        return losses.sum() / (divisors[self.kind] or 1.0)

    def ratios(self, tokens: Tokens) -> torch.Tensor:
        """[tokens]: of probabilities, the new one to that of the time of sampling."""
        old = tokens.sampled.old
        logarithms = tokens.log_probabilities - (tokens.log_probabilities.detach() if old is None else old)
        return (tokens.row_means(logarithms)[tokens.rows] if self.by_sequence else logarithms).exp()

    def divergences(self, tokens: Tokens) -> torch.Tensor:
        """[tokens]: the divergence from the reference model, estimated."""
        assert tokens.reference is not None
        differences = tokens.reference - tokens.log_probabilities
        divergences = differences.exp() - differences - 1
        return divergences * self.ratios(tokens) if self.corrects else divergences

    def describe(self, tokens: Tokens) -> Told:
        """The figures that TRL logs."""
        figures = dict(tokens.sampled.figures)
        ratios, advantages = self.ratios(tokens), tokens.advantages
        low = ((ratios < 1 - self.low) & (advantages < 0)).double()
        high = ((ratios > 1 + self.high) & (advantages > 0)).double()
        for name, clipped in (("low", low), ("high", high), ("region", low + high)):
            figures[f"clip_ratio/{name}_mean"] = self.mean(tokens, clipped)
        there = tokens.counts > 0
        if self.by_sequence:
            there = torch.ones_like(there)
        if bool(there.any()):
            figures["clip_ratio/low_min"] = float(tokens.row_means(low)[there].min())
            figures["clip_ratio/high_max"] = float(tokens.row_means(high)[there].max())
        if self.beta:
            figures["kl"] = float(self.divergences(tokens).sum() / max(1, len(tokens.log_probabilities)))
        if tokens.sampled.sampling is not None and len(tokens.log_probabilities):
            own = tokens.log_probabilities if tokens.undivided is None else tokens.undivided
            differences = (own - tokens.sampled.sampling).abs()
            figures[f"{SAMPLING}/mean"] = float(differences.mean())
            figures[f"{SAMPLING}/max"] = float(differences.max())
        return {name: value for name, value in figures.items() if math.isfinite(value)}

    def mean(self, tokens: Tokens, values: torch.Tensor) -> float:
        """Over tokens, or over rows whose tokens share one ratio."""
        if self.by_sequence:
            return float(tokens.row_means(values).mean())
        return float(values.sum() / max(1, values.numel()))


@dataclass
class Policy(OfTokens):
    """The rows of one step. Its loss is the mean over its micro-batches of each one's."""

    loss: PolicyLoss
    work: Work
    training: bool
    watches: Collection[str] = field(init=False)
    _losses: list[float] = field(default_factory=list)  # by micro-batch
    _gradients: dict[int, torch.Tensor] | None = None  # by micro-batch: d step's loss / d log-probability of each token
    _tokens: list[Tokens] = field(default_factory=list)  # by micro-batch

    def __post_init__(self) -> None:
        sampled = [batch.sampled for batch in self.work.micro_batches]
        differs = any(each is not None and each.sampling is not None and not each.divided for each in sampled)
        self.watches = ("entropy", "undivided") if differs and self.temperature != 1.0 else ("entropy",)

    @property
    def temperature(self) -> float:
        return self.loss.temperature

    def losses(self, stats: Mapping[int, Stats]) -> list[float]:
        self._settle(stats)
        return list(self._losses)

    def weights(self, stats: Mapping[int, Stats], batch: MicroBatch, scale: float) -> Weights:
        gradient = self._settle(stats)[batch.index]
        weight = (-scale * gradient).to(stats[batch.index].maximum.device, torch.float32)
        return [(slice(0, weight.numel()), weight)]

    def list_figures(self, stats: Mapping[int, Stats]) -> list[Told]:
        self._settle(stats)
        return [
            self.loss.describe(tokens) | entropy(stats.get(batch.index))
            for batch, tokens in zip(self.work.micro_batches, self._tokens, strict=True)
        ]

    def list_tokens(self) -> list[Tokens]:
        """The tokens of each micro-batch in the data's order, when the step has its losses."""
        numbered = zip(self.work.micro_batches, self._tokens, strict=True)
        return [tokens for _, tokens in sorted(numbered, key=lambda each: each[0].number)]

    def _settle(self, stats: Mapping[int, Stats]) -> dict[int, torch.Tensor]:
        if self._gradients is None:
            self._gradients, count = {}, self.work.step_batches
            for batch in self.work.micro_batches:
                tokens = tokens_of(batch, stats.get(batch.index))
                given = tokens.sampled.step_tokens
                step_tokens = float(self.work.step_labels) if given is None else given
                with torch.enable_grad():
                    loss = self.loss.loss(tokens, step_tokens / count)
                    (gradient,) = torch.autograd.grad(loss, tokens.log_probabilities)
                self._losses.append(float(loss.detach()) * (self.work.units / count if self.training else batch.units))
                self._gradients[batch.index] = gradient / count
                self._tokens.append(replace(tokens, log_probabilities=tokens.log_probabilities.detach()))
        return self._gradients


def tokens_of(batch: MicroBatch, stats: Stats | None) -> Tokens:
    """A micro-batch's tokens, by whose log-probabilities a loss is differentiated. `stats`: None where it has none."""
    assert batch.sampled is not None
    values = torch.zeros(0, dtype=torch.float64) if stats is None else stats.log_probabilities().cpu()
    counts = torch.tensor(batch.bounds).diff()
    raw = None if stats is None or stats.undivided is None else stats.undivided.log_probabilities().cpu()
    return Tokens(values.clone().requires_grad_(), counts, batch.sampled, batch.reference, raw)
