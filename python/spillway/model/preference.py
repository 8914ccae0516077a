"""Direct preference optimisation: from the log-probabilities of chosen and rejected rows to a loss, as TRL has it.

A micro-batch's first rows are the chosen ones, as many rejected ones follow in the same order. Everything here is of a
few numbers for each row, in fp64; the losses are differentiated by PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import logsigmoid

from spillway.model.microbatch import MicroBatch, Work
from spillway.model.objective import Choice, CrossEntropy, Told, accuracy, entropy, row_sums

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.model.head import Stats


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
    """The keys of a run."""

    loss_type: str = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0

    def __call__(self, work: Work, training: bool) -> Compared:
        return Compared(self, work, training)


def objective_of(config: Config) -> Choice:
    if config.objective == "dpo":
        return Preference(config.loss_type, config.beta, config.label_smoothing)
    return CrossEntropy


@dataclass
class Compared:
    """The pairs of one step or evaluation. A step's loss is the mean over its micro-batches of the mean over each one's
    pairs, as accumulation has it; an evaluation's the mean over all pairs."""

    keys: Preference
    work: Work
    training: bool
    watches: Collection[str] = ("mean", "entropy")
    _losses: list[float] = field(default_factory=list)  # by micro-batch
    _weights: dict[int, list[float]] | None = None  # by micro-batch: of each row
    _pairs: list[tuple[Pairs, list[float]]] = field(default_factory=list)  # and log-probabilities of the rows

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
            rewards(pairs, self.keys.beta, sums) | completions(batch, stats.get(batch.index))
            for batch, (pairs, sums) in zip(batches, self._pairs, strict=True)
        ]

    def _settle(self, stats: Mapping[int, Stats]) -> dict[int, list[float]]:
        if self._weights is None:
            self._weights = {}
            count = self.work.step_batches
            for batch in self.work.micro_batches:
                loss, weights = self._of(batch, row_sums(batch, stats.get(batch.index)))
                self._losses.append(loss * (self.work.units / count if self.training else batch.units))
                self._weights[batch.index] = [weight / count for weight in weights]
        return self._weights

    def _of(self, batch: MicroBatch, sums: list[float]) -> tuple[float, list[float]]:
        """The mean over a micro-batch's pairs, and minus its derivative by each row's log-probability."""
        assert batch.reference is not None
        rounded = torch.tensor(sums, dtype=torch.float64).to(batch.reference.dtype)  # so that equal ones stay equal
        rows = rounded.double().requires_grad_()
        tokens = torch.tensor([run.stop - run.start for run in batch.runs])
        with torch.enable_grad():
            pairs = Pairs(*(rows - batch.reference).chunk(2), *tokens.chunk(2))
            loss = LOSSES[self.keys.loss_type](pairs, self.keys.beta, self.keys.label_smoothing).mean()
            (gradient,) = torch.autograd.grad(loss, rows)
        self._pairs.append((pairs, sums))
        return float(loss.detach()), (-gradient).tolist()


def rewards(pairs: Pairs, beta: float, sums: Sequence[float]) -> Told:
    """The rewards of a micro-batch as TRL logs them."""
    chosen, rejected = beta * pairs.chosen.detach(), beta * pairs.rejected.detach()
    half = len(sums) // 2
    return {
        "rewards/chosen": float(chosen.mean()),
        "rewards/rejected": float(rejected.mean()),
        "rewards/accuracies": float((chosen > rejected).double().mean()),
        "rewards/margins": float((chosen - rejected).mean()),
        "logps/chosen": sum(sums[:half]) / half,
        "logps/rejected": sum(sums[half:]) / half,
    }


def completions(batch: MicroBatch, stats: Stats | None) -> Told:
    """What TRL logs of label tokens: logits of the whole vocabulary, the entropy of all, and how often a chosen one is
    the likeliest."""
    middle = batch.bounds[batch.rows // 2]
    if stats is None or stats.mean is None:
        return {}
    parts = {"logits/chosen": stats.mean[:middle], "logits/rejected": stats.mean[middle:]}
    found = {name: float(part.double().mean()) if part.numel() else 0.0 for name, part in parts.items()}
    return found | accuracy(stats, slice(middle)) | entropy(stats)
