"""The loss over a vocabulary that is never whole: two passes over the head's slices, for the labelled tokens only.

Pass 1 folds each slice's logits into a running log-sum-exp; pass 2 computes them again, or takes those that were kept,
turns them into their gradient in place, and multiplies it with the slice (into d loss / d hidden) and with the hidden
state (into the slice's gradient). Products are of the compute type; the sum over slices of d loss / d hidden is fp32.

A head with a bias, scales or caps makes its logits by the model's own code, slice by slice: such code treats every
entry of the vocabulary alike, which a tiny copy shows.

Both go over groups of label tokens (`head_groups`): the tiles of a micro-batch on CPUs, whole virtual ranks on a GPU. A
group's gradient of the slice is handed over like a micro-batch's.

With fp32, which is for checks against a plain loop, PyTorch's own log-softmax gives each slice's statistics: its sums
of exponentials are off by some 5e-7, the same for a whole row, and so is the gradient a plain loop sees.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from spillway.model.batches.microbatch import MicroBatch
from spillway.model.head.head_groups import Group, form_groups
from spillway.model.head.logits import labels_inside, loss_gradient, token_parts
from spillway.model.head.objective import OfLogits, Told
from spillway.model.layers.few_rows import multiply, multiply_and_add
from spillway.model.layers.token_tiles import Parts

if TYPE_CHECKING:
    from spillway._engine import Engine
    from spillway.model.head.objective import Objective, Weights
    from spillway.model.stream.plain_engine import PlainEngine
    from spillway.model.stream.shared import Kept


@dataclass(frozen=True)
class HeadCode:
    """Parts of a head besides its product."""

    bias: Kept | None = None
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None  # [1, tokens, rows] of logits to final ones
    trainable: bool = True  # its matrix has a gradient


GPU_LINE = 64  # elements: 128 bytes of bf16
# micro-batch; logits of its labelled tokens, [tokens, rows of the slice]; the slice's first row
Watch = Callable[[MicroBatch, torch.Tensor, int], None]


class Scratch:
    """Flat buffers that grow to the largest request and stay."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.line = GPU_LINE if self.device.type == "cuda" else 1  # elements; a table's rows are a multiple in products
        self._buffers: dict[str, torch.Tensor] = {}

    def matrix(self, name: str, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        count = rows * columns
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < count:
            self._buffers.pop(name, None)
            buffer = self._buffers[name] = torch.empty(count, dtype=dtype, device=self.device)
        return buffer[:count].view(rows, columns)

    def lines(self, table: torch.Tensor) -> torch.Tensor:
        """The table, or where its rows do not fill whole lines of logits, as a GPU's fast kernels of products ask for,
        a copy with rows of zeros besides that do."""
        rows = math.ceil(len(table) / self.line) * self.line
        if rows == len(table):
            return table
        filled = self.matrix("table", rows, table.shape[1], table.dtype)
        filled[: len(table)] = table
        filled[len(table) :] = 0
        return filled


@dataclass
class GroupPass:
    """A group of label tokens on its way through both passes."""

    group: Group
    stats: Stats
    labels: torch.Tensor = field(init=False)
    logits: dict[int, torch.Tensor] = field(default_factory=dict)  # that stay for pass 2, by the slice's first row
    hidden: torch.Tensor | None = None  # [size, hidden], where it is gathered once
    log_sum: torch.Tensor | None = None  # of `stats`, in pass 2
    weights: Weights | None = None  # of runs of its tokens, in pass 2

    def __post_init__(self) -> None:
        self.labels = self.group.labels()

    def sums(self, accumulator: torch.Tensor) -> torch.Tensor:
        """fp32 [size, hidden]: the sums of d loss / d hidden."""
        return accumulator[self.group.first_row :][: self.group.size]


class HeadPass:
    """The head's passes of one step or evaluation."""

    def __init__(
        self,
        engine: Engine | PlainEngine,
        batches: list[MicroBatch],
        objective: Objective,
        scratch: Scratch,
        code: HeadCode | None = None,
        watch: Watch | None = None,
        keep: int = 0,
        parts: Parts | None = None,
        name: str = "",
    ) -> None:
        """`watch` sees the logits of pass 1, all of a micro-batch at once, and must not keep them. `keep`: slices, the
        first of pass 1, whose logits stay for pass 2, if no code follows their product, which might change them.
        `parts`: of the step, which has begun; None: its micro-batches. `name`: of buffers that another pass with the
        same scratch does not share."""
        self._watch = watch
        self._engine = engine
        self._code = code or HeadCode()
        self._batches = batches
        self._objective = objective
        self._scale = engine.loss_scale()[0]
        self._scratch, self._name = scratch, name
        parts = parts or whole_batches(batches)
        self._gathers_once = parts.tiles.head_tokens is not None
        groups = form_groups(batches, parts, watch is not None)
        self._groups = [GroupPass(group, Stats(group.size, scratch.device)) for group in groups]
        self._joined: dict[int, Stats] | None = None
        self._summed = False  # the accumulator holds a slice already
        self._temperature = 1.0 if watch is not None else objective.temperature
        self._keep = keep if self._code.transform is None and self._temperature == 1.0 else 0

    def add_loss(self, hidden: torch.Tensor, table: torch.Tensor, first_row: int) -> None:
        """Pass 1 of one slice. hidden: [tokens, hidden] of the whole step; table: [rows, hidden]."""
        keeps, self._keep = self._keep > 0, self._keep - 1
        factor = self._scratch.lines(table)
        for number, each in enumerate(self._groups):
            if not each.group.size:
                continue
            where = f"logits {number} {first_row}" if keeps else "logits"
            made = self._logits(self._select(number, hidden), factor, first_row, len(table), where)
            if keeps:
                each.logits[first_row] = made
            logits = self._transformed(made[:, : len(table)])
            if self._watch is not None:
                self._watch(each.group.members[0].batch, logits, first_row)
            if "undivided" in self._objective.watches:
                self._fold(each.stats.begin_undivided(), logits, first_row, each.labels)
            self._divide(logits)
            self._add(each.stats, logits, first_row, each.labels)
            if isinstance(self._objective, OfLogits):
                for member in each.group.members:
                    self._objective.add_logits(member.batch, member.tokens, logits[member.place], first_row)

    def _divide(self, logits: torch.Tensor) -> None:
        if self._temperature != 1.0:
            logits.div_(self._temperature)

    def _add(self, stats: Stats, logits: torch.Tensor, first_row: int, labels: torch.Tensor) -> None:
        if "scores" in self._objective.watches:
            return stats.add_scores(logits)
        self._fold(stats, logits, first_row, labels)
        if "mean" in self._objective.watches:
            stats.add_mean(logits)
        if "entropy" in self._objective.watches:
            stats.add_spread(logits)

    def _fold(self, stats: Stats, logits: torch.Tensor, first_row: int, labels: torch.Tensor) -> None:
        if logits.dtype == torch.float32:
            stats.fold(logits, first_row, labels)
        else:
            self._engine.loss_stats(logits, first_row, labels, stats.maximum, stats.sum, stats.gold)

    def losses(self) -> list[float]:
        """The exact terms of the loss over all label tokens, or pairs, by micro-batch; known once every slice has been
        seen."""
        return self._objective.losses(self._whole())

    def list_figures(self) -> list[Told]:
        """The objective's other figures, by micro-batch."""
        return self._objective.list_figures(self._whole())

    def add_gradient(
        self, hidden: torch.Tensor, table: torch.Tensor, first_row: int, accumulator: torch.Tensor
    ) -> None:
        """Pass 2 of one slice. accumulator: fp32 [tokens, hidden]; see `spread`."""
        factor = self._scratch.lines(table)
        for number, each in enumerate(self._groups):
            if not each.group.size:
                self._give(each.group.part, table, None)
                continue
            selected = self._select(number, hidden)
            stored = each.logits.pop(first_row, None)
            logits = self._logits(selected, factor, first_row, len(table)) if stored is None else stored
            self._differentiate(logits, each, first_row, len(table))
            self._add_hidden_gradient(each.sums(accumulator), logits, factor)
            self._give(each.group.part, table, (logits, selected))
        self._summed = True

    def _give(self, part: int, table: torch.Tensor, factors: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        """The slice's own gradient. `factors`: gradient of the logits, hidden states; None: no token has a label."""
        if not self._code.trainable:
            return
        rows = len(table) if factors is None else factors[0].shape[1]
        slice_gradient = self._scratch.matrix("slice", rows, table.shape[1], table.dtype)
        if factors is None:
            slice_gradient.zero_()  # the engine counts parts
        else:
            torch.mm(factors[0].t(), factors[1], out=slice_gradient)
        self._engine.head_gradient(slice_gradient[: len(table)], part)

    def spread(self, accumulator: torch.Tensor, hidden_gradient: torch.Tensor) -> None:
        """The accumulator's sums, to their tokens; zero for tokens without a label."""
        for batch in self._batches:
            batch.part(hidden_gradient).zero_()
        for each in self._groups:
            for member in each.group.members:
                target, sums = member.batch.part(hidden_gradient), each.sums(accumulator)[member.place]
                if member.batch.run is None:
                    target.index_copy_(0, member.batch.labelled[member.tokens], sums.to(target.dtype))
                else:
                    target[member.batch.run][member.tokens] = sums

    def _transformed(self, logits: torch.Tensor) -> torch.Tensor:
        if self._code.transform is None:
            return logits
        with torch.no_grad():
            return self._code.transform(logits[None])[0]

    def _whole(self) -> dict[int, Stats]:
        """The statistics of each micro-batch with label tokens, by its index, when pass 1 has ended."""
        if self._joined is None:
            parts: dict[int, list[Stats]] = defaultdict(list)
            for each in self._groups:
                for member in each.group.members:
                    if member.size:
                        parts[member.batch.index].append(each.stats.select(member.place))
            self._joined = {index: Stats.joined(stats) for index, stats in parts.items()}
        return self._joined

    def _differentiate(self, output: torch.Tensor, each: GroupPass, first_row: int, rows: int) -> None:
        """Turns the product's output into d loss / d output. `rows`: of the slice; those that `Scratch.lines` adds stay
        zero."""
        logits = output[:, :rows]
        if self._code.transform is None:
            self._loss_gradient(logits, each, first_row)
        else:
            leaf = logits.detach().requires_grad_()
            with torch.enable_grad():
                final = self._code.transform(leaf[None])[0]
            gradient = final.detach().clone()
            self._loss_gradient(gradient, each, first_row)
            logits.copy_(*torch.autograd.grad(final, leaf, gradient))
        if self._code.bias is not None:
            self._code.bias.rank = each.group.rank
            self._code.bias.add(logits.float().sum(0), slice(first_row, first_row + rows))

    def _loss_gradient(self, logits: torch.Tensor, each: GroupPass, first_row: int) -> None:
        self._divide(logits)
        self._gradient_by_quotients(logits, each, first_row)
        self._divide(logits)

    def _gradient_by_quotients(self, logits: torch.Tensor, each: GroupPass, first_row: int) -> None:
        """d loss / d quotient of each logit and the temperature."""
        if "scores" in self._objective.watches:
            columns = slice(first_row, first_row + logits.shape[1])
            for member in each.group.members:
                if member.size:
                    gradient = self._objective.score_gradient(self._whole(), member.batch, self._scale)
                    logits[member.place] = gradient[member.tokens, columns].to(logits.device, logits.dtype)
            return
        if isinstance(self._objective, OfLogits):
            weight = self._objective.weigh(self._scale)
            for member in each.group.members:
                stats, place = each.stats.select(member.place), logits[member.place]
                self._objective.differentiate(member.batch, member.tokens, place, first_row, stats, weight)
            return
        if each.weights is None or each.log_sum is None:
            each.weights, each.log_sum = self._weights(each.group), each.stats.log_sum
        maximum, log_sum, labels = each.stats.maximum, each.log_sum, each.labels
        # where the model's code makes the logits, of the type that it makes
        compute = self._engine.loss_gradient if self._code.transform is None else loss_gradient
        for run, weight in each.weights:
            given = (logits[run], first_row, labels[run], maximum[run], log_sum[run])
            if isinstance(weight, torch.Tensor):
                loss_gradient(*given, weight)
            else:
                compute(*given, weight)

    def _weights(self, group: Group) -> Weights:
        """Runs of a group's tokens, and the weight of each token of a run; neighbours of one weight are one run."""
        runs: list[tuple[slice, float | torch.Tensor]] = []
        for member in group.members:
            weights = self._objective.weights(self._whole(), member.batch, self._scale) if member.size else []
            for whole, weight in weights:
                run = within(whole, member.tokens)
                first, after = member.first + run.start, member.first + run.stop
                if after <= first:
                    continue
                if isinstance(weight, torch.Tensor):
                    begin = member.tokens.start + run.start - whole.start
                    runs.append((slice(first, after), weight[begin : begin + after - first]))
                    continue
                if runs and runs[-1][0].stop == first and runs[-1][1] == weight:
                    first = runs.pop()[0].start
                runs.append((slice(first, after), weight))
        return runs

    def _add_hidden_gradient(self, sums: torch.Tensor, logits: torch.Tensor, table: torch.Tensor) -> None:
        if sums.dtype == table.dtype:
            multiply_and_add(sums, logits, table, out=sums, beta=1 if self._summed else 0)
            return
        product = self._scratch.matrix("product", sums.shape[0], sums.shape[1], table.dtype)
        multiply(logits, table, out=product)
        if self._summed:
            sums.add_(product)
        else:
            sums.copy_(product)

    def _select(self, number: int, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens of a group, hidden]; a view where they are consecutive."""
        each = self._groups[number]
        if (run := each.group.run()) is not None:
            return hidden[run]
        if each.hidden is not None:
            return each.hidden
        name = f"selected {number}{self._name}" if self._gathers_once else "selected"
        selected = self._scratch.matrix(name, each.group.size, hidden.shape[1], hidden.dtype)
        torch.index_select(hidden, 0, each.group.rows(), out=selected)
        each.hidden = selected if self._gathers_once else None
        return selected

    def _logits(
        self, selected: torch.Tensor, table: torch.Tensor, first_row: int, rows: int, where: str = "logits"
    ) -> torch.Tensor:
        """[tokens, rows of the table], of which `rows` are the slice's."""
        logits = self._scratch.matrix(where, selected.shape[0], table.shape[0], table.dtype)
        bias = self._code.bias
        if bias is None:
            return multiply(selected, table.t(), out=logits)
        own = bias.leaf.detach()[first_row : first_row + rows]
        return multiply_and_add(functional.pad(own, (0, len(table) - rows)), selected, table.t(), out=logits)


def whole_batches(batches: list[MicroBatch]) -> Parts:
    parts = Parts()
    parts.begin(batches)
    return parts


def within(run: slice, tile: slice) -> slice:
    """The part of a run that lies in a tile, counted from the tile's start."""
    first, after, _ = run.indices(tile.stop)
    return slice(max(0, first - tile.start), max(0, after - tile.start))


TENSORS = ("maximum", "sum", "gold", "mean", "scores", "_log_sum")  # of Stats, an element or a row a token, or None


class Spread(NamedTuple):
    """The spread of some logits x of each token, in fp64: their maximum m, the sum of exp(x - m), and that of (x - m)
    exp(x - m). The loss's own maximum and sum, of fp32, would not do: entropy is a small difference of large numbers
    then."""

    maximum: torch.Tensor
    sum: torch.Tensor
    weighted: torch.Tensor

    @staticmethod
    def from_logits(logits: torch.Tensor) -> Spread:
        """logits: fp32 [tokens, rows]. A token may have -inf alone."""
        maximum = logits.amax(1)
        shares = logits.sub(maximum.masked_fill(maximum == -math.inf, 0)[:, None]).exp_()
        sums = shares.sum(1, dtype=torch.float64)
        return Spread(maximum.double(), sums, -torch.special.entr(shares).sum(1, dtype=torch.float64))

    def merge(self, other: Spread) -> Spread:
        """The spread of both slices together."""
        maximum = torch.maximum(self.maximum, other.maximum)
        parts = [each.below(maximum) for each in (self, other)]
        return Spread(maximum, parts[0].sum + parts[1].sum, parts[0].weighted + parts[1].weighted)

    def below(self, maximum: torch.Tensor) -> Spread:
        """This spread, expressed by another maximum that is no lower."""
        gap = (self.maximum - maximum).nan_to_num(0.0, neginf=-math.inf)
        share = gap.exp()
        moved = torch.where(share > 0, share * (self.weighted + gap * self.sum), 0.0)
        return Spread(maximum, share * self.sum, moved)


class Stats:
    """Running log-sum-exp and the label's logit of some tokens."""

    def __init__(self, tokens: int, device: torch.device | None = None) -> None:
        self.maximum = torch.full((tokens,), -math.inf, device=device)
        self.sum = torch.zeros(tokens, device=device)
        self.gold = torch.zeros(tokens, device=device)
        self.mean: torch.Tensor | None = None  # of the logits of the slices seen, where that was asked for
        self.scores: torch.Tensor | None = None  # [tokens, rows of the slices seen], where they were asked for
        self._log_sum: torch.Tensor | None = None  # what `fold` has made
        self._rows = 0  # of the slices in `mean`
        self._spread: Spread | None = None
        self.undivided: Stats | None = None  # of the logits before their division by the temperature

    def begin_undivided(self) -> Stats:
        if self.undivided is None:
            self.undivided = Stats(self.maximum.numel(), self.maximum.device)
        return self.undivided

    @staticmethod
    def joined(parts: Sequence[Stats]) -> Stats:
        """The spread of the tokens of all of them, which have seen the same slices."""
        return parts[0] if len(parts) == 1 else Stats._combine(parts, torch.cat)

    def select(self, run: slice) -> Stats:
        """The statistics of a run of its tokens."""
        if run == slice(0, self.maximum.numel()):
            return self
        return Stats._combine([self], lambda tensors: tensors[0][run])

    @staticmethod
    def _combine(parts: Sequence[Stats], combine: Callable[[Sequence[torch.Tensor]], torch.Tensor]) -> Stats:
        """Statistics of parts that have seen the same slices. `combine`: makes one tensor of those of all parts."""
        made = Stats(0, parts[0].maximum.device)
        for name in TENSORS:
            if getattr(parts[0], name) is not None:
                setattr(made, name, combine([getattr(part, name) for part in parts]))
        spreads = [part._spread for part in parts if part._spread is not None]
        made._spread = Spread(*map(combine, zip(*spreads, strict=True))) if spreads else None
        made._rows = parts[0]._rows
        undivided = [part.undivided for part in parts if part.undivided is not None]
        made.undivided = Stats._combine(undivided, combine) if undivided else None
        return made

    @property
    def log_sum(self) -> torch.Tensor:
        """The logarithm of the sum of exp(logit - maximum)."""
        return self.sum.log() if self._log_sum is None else self._log_sum

    def fold(self, logits: torch.Tensor, first_row: int, labels: torch.Tensor) -> None:
        """Takes in a slice [tokens, rows] of fp32 logits as PyTorch's log-softmax sees it."""
        highest = logits.amax(1)
        # The log-softmax of the largest logit is exactly minus the logarithm of the sum.
        log_sum = torch.cat([-logits[part].log_softmax(1).amax(1) for part in token_parts(logits)])
        log_sum[highest == -math.inf] = 0  # nothing to sum
        if self._log_sum is None:
            self.maximum, self._log_sum = highest, log_sum
        else:
            maximum = torch.maximum(self.maximum, highest)
            self._log_sum = torch.logaddexp(self._log_sum + (self.maximum - maximum), log_sum + (highest - maximum))
            self.maximum = maximum
        here, columns = labels_inside(labels, first_row, logits.shape[1])
        self.gold = torch.where(here, logits.gather(1, columns[:, None]).view(-1), self.gold)

    def add_mean(self, logits: torch.Tensor) -> None:
        """Takes in a slice [tokens, rows] of them."""
        rows = self._rows + logits.shape[1]
        sums = logits.sum(1, dtype=torch.float32)
        self.mean = sums / rows if self.mean is None else self.mean * (self._rows / rows) + sums / rows
        self._rows = rows

    def add_scores(self, logits: torch.Tensor) -> None:
        """Keeps a slice [tokens, rows] of them as they are."""
        self.scores = logits.clone() if self.scores is None else torch.cat([self.scores, logits], 1)

    def add_spread(self, logits: torch.Tensor) -> None:
        """Takes in a slice [tokens, rows] of them, for `entropy`."""
        parts = [Spread.from_logits(logits[part].float()) for part in token_parts(logits)]
        spread = Spread(*(torch.cat(each) for each in zip(*parts, strict=True)))
        self._spread = spread if self._spread is None else self._spread.merge(spread)

    def entropy(self) -> torch.Tensor:
        """fp64, of each token, in nats; of slices that `add_spread` took in."""
        assert self._spread is not None
        return self._spread.sum.log() - self._spread.weighted / self._spread.sum

    def log_probabilities(self) -> torch.Tensor:
        """fp64, of each token."""
        return self.gold.double() - self._normalizer()

    def loss(self) -> float:
        return float((self._normalizer() - self.gold.double()).sum())

    def _normalizer(self) -> torch.Tensor:
        """fp64: of each token the logarithm of the sum of the exponentials of all its logits."""
        log_sum = self.sum.double().log() if self._log_sum is None else self._log_sum.double()
        return self.maximum.double() + log_sum
