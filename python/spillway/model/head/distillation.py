"""Distillation: the loss between a teacher's distribution of each label token and the model's.

The teacher's distribution is known by its largest logits and by one bucket for the rest of the vocabulary. Both passes
go over slices of the vocabulary, so no logits [tokens, vocabulary] are ever whole. Sums over the vocabulary are fp64.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from spillway.model.batches.microbatch import MicroBatch, Work
from spillway.model.head.logits import labels_inside
from spillway.model.head.objective import OfLogits, Told, accuracy

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.model.head.head import Stats

PART, PART_ON_GPU = 1 << 18, 1 << 22  # elements of logits that are widened at once
BYTES_PER_ENTRY = 24  # of each of a token's largest logits, while a step or a pass of the teacher goes on
PART_BYTES = 48  # of each element of a part: a few temporaries, some in fp64


@dataclass(frozen=True)
class TopTokens:
    """A teacher's distributions of some tokens: [tokens, k] of the largest logits, and the rest of the vocabulary."""

    ids: torch.Tensor  # int32 [tokens, k]: entries of the vocabulary, the likeliest first
    logits: torch.Tensor  # fp32 [tokens, k]
    rest: torch.Tensor  # fp64 [tokens]: log-sum-exp of all other logits / temperature; -inf: there is no other

    def to(self, device: torch.device) -> TopTokens:
        return TopTokens(*(tensor.to(device, non_blocking=True) for tensor in (self.ids, self.logits, self.rest)))

    def select(self, tokens: slice) -> TopTokens:
        return TopTokens(self.ids[tokens], self.logits[tokens], self.rest[tokens])

    @staticmethod
    def join(parts: Collection[TopTokens]) -> TopTokens:
        """The tokens of all parts, which have as many entries each."""
        return TopTokens(*(torch.cat([getattr(part, name) for part in parts]) for name in ("ids", "logits", "rest")))


def working_bytes(tokens: int, top_k: int, on_gpu: bool) -> int:
    """Memory beside that of cross-entropy: of the largest step, or of a pass of the teacher. 0: no distillation."""
    part = PART_ON_GPU if on_gpu else PART
    return tokens * top_k * BYTES_PER_ENTRY + part * PART_BYTES if top_k else 0


def log_sum_exp(values: torch.Tensor) -> torch.Tensor:
    """fp64 [tokens] of [tokens, entries]; -inf where all entries are -inf, or there is none."""
    if not values.shape[1]:
        return torch.full(values.shape[:1], -math.inf, dtype=torch.float64, device=values.device)
    highest = values.amax(1)
    base = highest.masked_fill(highest == -math.inf, 0.0)
    return base.double() + (values - base[:, None]).exp().sum(1, dtype=torch.float64).log()


class LargestLogits(OfLogits):
    """No loss: the largest logits of each label token, and the log-sum-exp of the others."""

    def __init__(self, top_k: int, temperature: float, work: Work, training: bool = False) -> None:
        self._top_k, self._temperature, self._batches = top_k, temperature, work.micro_batches
        self._parts: dict[tuple[int, int], TopTokens] = {}  # by micro-batch and its first token

    def add_logits(self, batch: MicroBatch, tokens: slice, logits: torch.Tensor, first_row: int) -> None:
        key = (batch.index, tokens.start)
        if key not in self._parts:
            self._parts[key] = self._begin(logits)
        known = self._parts[key]
        for part in parts_of(logits):
            self._merge(known.select(part), logits[part].to(torch.float32, copy=True), first_row)

    def losses(self, stats: Mapping[int, Stats]) -> list[float]:
        return [0.0] * len(self._batches)

    def weigh(self, scale: float) -> float:
        return 0.0

    def differentiate(
        self, batch: MicroBatch, tokens: slice, logits: torch.Tensor, first_row: int, stats: Stats, weight: float
    ) -> None:
        raise AssertionError("a teacher is not trained")

    def list_figures(self, stats: Mapping[int, Stats]) -> list[Told]:
        return [{} for _ in self._batches]

    def take(self) -> list[TopTokens]:
        """The tokens of each micro-batch, on the host, in the data's order."""
        parts: dict[int, list[TopTokens]] = {batch.number: [] for batch in self._batches}
        number = {batch.index: batch.number for batch in self._batches}
        for index, first in sorted(self._parts):
            parts[number[index]].append(self._parts[index, first].to(torch.device("cpu")))
        return [TopTokens.join(parts[place] or [self._begin(torch.empty(0, 1))]) for place in sorted(parts)]

    def _begin(self, logits: torch.Tensor) -> TopTokens:
        shape, device = (logits.shape[0], self._top_k), logits.device
        return TopTokens(
            torch.zeros(shape, dtype=torch.int32, device=device),
            torch.full(shape, -math.inf, device=device),
            torch.full(shape[:1], -math.inf, dtype=torch.float64, device=device),
        )

    def _merge(self, known: TopTokens, values: torch.Tensor, first_row: int) -> None:
        """Takes a slice in, in place. values: fp32 [tokens, rows], which are changed."""
        top = values.topk(min(self._top_k, values.shape[1]), 1)
        below = values.scatter_(1, top.indices, -math.inf)
        logits = torch.cat([known.logits, top.values], 1)
        ids = torch.cat([known.ids, (top.indices + first_row).int()], 1)
        best = logits.topk(self._top_k, 1)
        lost = logits.scatter(1, best.indices, -math.inf)
        rest = [known.rest, *(log_sum_exp(each.div_(self._temperature)) for each in (below, lost))]
        known.rest.copy_(torch.stack(rest).logsumexp(0))
        known.logits.copy_(best.values)
        known.ids.copy_(ids.gather(1, best.indices))


class Buckets(NamedTuple):
    """Log-probabilities of some tokens: fp64 [tokens, k] of the teacher's entries, [tokens] of all others together."""

    entries: torch.Tensor
    rest: torch.Tensor

    @staticmethod
    def from_logits(logits: torch.Tensor, rest: torch.Tensor, temperature: float) -> tuple[Buckets, torch.Tensor]:
        """The log-probabilities, and the log-sum-exp of all logits / temperature."""
        scaled = logits.double() / temperature
        total = torch.logaddexp(scaled.logsumexp(1), rest)
        return Buckets(scaled - total[:, None], rest - total), total


@dataclass(frozen=True)
class Divergence:
    """The loss of label tokens: `alpha` * T^2 * divergence + (1 - `alpha`) * cross-entropy."""

    is_reverse: bool = False
    temperature: float = 1.0
    alpha: float = 1.0

    @classmethod
    def from_config(cls, config: Config) -> Divergence:
        return cls(config.loss_type == "reverse_kl", config.temperature, config.distill_alpha)

    def compare(self, teacher: Buckets, model: Buckets) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The divergence of each token [tokens], its derivative by logits / temperature of the teacher's entries
        [tokens, k], and that of any other entry as a multiple of its probability [tokens]."""
        p, q = teacher.entries.exp(), model.entries.exp()
        if self.is_reverse:
            gap, gap_of_rest = model.entries - teacher.entries, ratio(model.rest, teacher.rest)
            losses = (q * gap).sum(1) + weighted(model.rest, gap_of_rest)
            return losses, q * (gap - losses[:, None]), gap_of_rest - losses
        gap_of_rest = ratio(teacher.rest, model.rest)
        losses = weighted(teacher.entries, teacher.entries - model.entries).sum(1)
        return losses + weighted(teacher.rest, gap_of_rest), q - p, 1 - gap_of_rest.exp()


def ratio(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The difference of log-probabilities; 0 where both are of nothing."""
    return torch.where(one == other, 0.0, one - other)


def weighted(logarithms: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """exp(logarithms) * values; 0 for a probability of 0."""
    return torch.where(logarithms == -math.inf, 0.0, logarithms.exp() * values)


@dataclass
class Seen:
    """Figures of the first pass over some label tokens of a micro-batch; when settled, the input of the second pass."""

    logits: torch.Tensor  # fp32 [tokens, k]: of the teacher's entries; when settled the derivative by them
    rest: torch.Tensor  # fp64 [tokens]: log-sum-exp of the others / temperature; when settled a multiple of softmax
    total: torch.Tensor | None = None  # fp64 [tokens]: log-sum-exp of all logits / temperature, when settled
    losses: torch.Tensor | None = None  # fp64 [tokens]: divergences, when settled


@dataclass
class Distilled(OfLogits):
    """The label tokens of one step or evaluation. Its loss is a mean over label tokens."""

    loss: Divergence
    work: Work
    training: bool
    _seen: dict[tuple[int, int], Seen] = field(default_factory=dict)  # by micro-batch and its first token

    def add_logits(self, batch: MicroBatch, tokens: slice, logits: torch.Tensor, first_row: int) -> None:
        teacher = teacher_of(batch).select(tokens)
        key = (batch.index, tokens.start)
        if key not in self._seen:
            rest = torch.full_like(teacher.rest, -math.inf)
            self._seen[key] = Seen(torch.full_like(teacher.logits, -math.inf), rest)
        seen = self._seen[key]
        for part in parts_of(logits):
            values, ids = widen(logits[part]), teacher.ids[part].long()
            here, columns = find_columns(ids, first_row, logits.shape[1])
            chosen = values.gather(1, columns)
            seen.logits[part] = torch.where(here, chosen, seen.logits[part])
            values.scatter_(1, columns, -math.inf)
            seen.rest[part] = torch.logaddexp(seen.rest[part], log_sum_exp(values.div_(self.loss.temperature)))

    def losses(self, stats: Mapping[int, Stats]) -> list[float]:
        return [self._loss(batch, stats.get(batch.index)) for batch in self.work.micro_batches]

    def list_figures(self, stats: Mapping[int, Stats]) -> list[Told]:
        self._settle()
        figures_of_batches = []
        for batch in self.work.micro_batches:
            tokens = max(1, batch.labelled.numel())
            cross_entropy = stats[batch.index].loss() if batch.index in stats else 0.0
            figures = {"kl": self._divergence(batch) / tokens, "cross_entropy": cross_entropy / tokens}
            figures_of_batches.append(figures | accuracy(stats.get(batch.index)))
        return figures_of_batches

    def weigh(self, scale: float) -> float:
        return scale / max(1, self.work.units)

    def differentiate(
        self, batch: MicroBatch, tokens: slice, logits: torch.Tensor, first_row: int, stats: Stats, weight: float
    ) -> None:
        self._settle()
        seen, ids = self._seen[batch.index, tokens.start], teacher_of(batch).ids[tokens]
        labels, maximum, log_sum = batch.labels[tokens], stats.maximum, stats.log_sum
        of_divergence, of_labels = (weight * share for share in (self.loss.alpha, 1 - self.loss.alpha))
        assert seen.total is not None
        rows = logits.shape[1]
        for part in parts_of(logits):
            values = widen(logits[part])
            here, columns = find_columns(ids[part].long(), first_row, rows)
            rounded = seen.total[part].float()
            share = seen.rest[part] * (rounded.double() - seen.total[part]).exp()
            gradient = values.div(self.loss.temperature).sub_(rounded[:, None]).exp_().mul_(share.float()[:, None])
            gradient.scatter_(1, columns, torch.where(here, seen.logits[part], 0.0))
            gradient.mul_(of_divergence * self.loss.temperature)  # T^2 of the loss, 1 / T of its logits
            if of_labels:
                values.sub_(maximum[part][:, None]).sub_(log_sum[part][:, None]).exp_()
                inside, label = labels_inside(labels[part], first_row, rows)
                values.scatter_add_(1, label[:, None], -inside.float()[:, None])
                gradient.add_(values, alpha=of_labels)
            logits[part] = gradient[:, :rows]

    def _loss(self, batch: MicroBatch, stats: Stats | None) -> float:
        self._settle()
        share = self.loss.alpha
        loss = share * self.loss.temperature**2 * self._divergence(batch)
        return loss + ((1 - share) * stats.loss() if stats is not None and share < 1 else 0.0)

    def _divergence(self, batch: MicroBatch) -> float:
        """Summed over its label tokens."""
        parts = [seen.losses for (index, _), seen in sorted(self._seen.items()) if index == batch.index]
        return math.fsum(float(losses.sum()) for losses in parts if losses is not None)

    def _settle(self) -> None:
        """Turns what the first pass has seen into losses and derivatives, once every slice was seen."""
        batches = {batch.index: batch for batch in self.work.micro_batches}
        for (index, first), seen in self._seen.items():
            if seen.total is None:
                self._settle_tokens(teacher_of(batches[index]).select(slice(first, first + len(seen.rest))), seen)

    def _settle_tokens(self, teacher: TopTokens, seen: Seen) -> None:
        seen.total, seen.losses = torch.empty_like(seen.rest), torch.empty_like(seen.rest)
        for part in parts_of(seen.logits):
            expected, _ = Buckets.from_logits(teacher.logits[part], teacher.rest[part], self.loss.temperature)
            model, seen.total[part] = Buckets.from_logits(seen.logits[part], seen.rest[part], self.loss.temperature)
            seen.losses[part], seen.logits[part], seen.rest[part] = self.loss.compare(expected, model)


def teacher_of(batch: MicroBatch) -> TopTokens:
    assert batch.teacher is not None
    return batch.teacher


def parts_of(logits: torch.Tensor) -> Iterator[slice]:
    """Runs of tokens whose logits are widened at once."""
    step = max(1, (PART_ON_GPU if logits.is_cuda else PART) // max(1, logits.shape[1]))
    for first in range(0, logits.shape[0], step):
        yield slice(first, first + step)


def widen(logits: torch.Tensor) -> torch.Tensor:
    """fp32 [tokens, rows + 1] of a slice [tokens, rows]: a copy, and a column that `find_columns` sends others to."""
    values = logits.new_full((logits.shape[0], logits.shape[1] + 1), -math.inf, dtype=torch.float32)
    values[:, :-1] = logits
    return values


def find_columns(ids: torch.Tensor, first_row: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which entries lie in the slice, and the column of each; that of the others is `rows`."""
    columns = ids - first_row
    here = (columns >= 0) & (columns < rows)
    return here, torch.where(here, columns, rows)
