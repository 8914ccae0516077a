"""A step's micro-batches: where their tokens lie, which of them carry a loss, and against which label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from spillway._engine import share_of_step

if TYPE_CHECKING:
    from spillway.model.batches.batch import Batch, Sampled
    from spillway.model.head.distillation import TopTokens

IGNORED = -100


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of a step. Tokens are counted row by row, padding included."""

    index: int  # its position in the step's order
    first: int  # its first token, counted over the step
    rows: int
    length: int
    position_ids: torch.Tensor | None  # [rows, length]; None: not packed
    labelled: torch.Tensor  # int64 [n], rising: tokens of this micro-batch that have a label
    labels: torch.Tensor  # int64 [n]: the token each of them is to predict
    real: torch.Tensor | None = None  # fp32 [tokens]: 0 for padding, else 1; None: there is none
    run: slice | None = None  # what `labelled` is when its tokens are consecutive
    real_tokens: float = 0.0  # sum of `real`
    bounds: tuple[int, ...] = ()  # [rows + 1]: where in `labelled` each row's label tokens begin and end
    reference: torch.Tensor | None = None  # Batch.reference, on the host
    rows_each: int = 0  # Batch.rows_each
    prompts: tuple[int, ...] = ()  # [rows]: label tokens of each row that are of its prompt; (): of none
    verdicts: torch.Tensor | None = None  # Batch.verdicts
    targets: torch.Tensor | None = None  # Batch.targets, on the host
    teacher: TopTokens | None = None  # Batch.teacher
    sampled: Sampled | None = None  # Batch.sampled
    images: Mapping[str, torch.Tensor] | None = None  # Batch.images
    number: int = 0  # its position in the data's order
    rank: int = 0  # its virtual rank
    ends_rank: bool = True  # no further one of the step has that rank

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    @property
    def runs(self) -> list[slice]:
        """For each row, where in `labelled` its label tokens are."""
        return [slice(first, last) for first, last in zip(self.bounds, self.bounds[1:], strict=False)]

    @property
    def parts(self) -> tuple[list[slice], list[slice]]:
        """`runs`, the part of each row's prompt and the part of its completion."""
        middles = [run.start + prompt for run, prompt in zip(self.runs, self.prompts or [0] * self.rows, strict=True)]
        return (
            [slice(run.start, middle) for run, middle in zip(self.runs, middles, strict=True)],
            [slice(middle, run.stop) for run, middle in zip(self.runs, middles, strict=True)],
        )

    @property
    def units(self) -> int:
        """The number of units that a loss is a mean over: label tokens, or pairs of rows."""
        return self.rows // self.rows_each if self.rows_each else self.labelled.numel()

    def to(self, device: torch.device) -> MicroBatch:
        """The micro-batch with its tensors on the device. The host has read what it needs of them."""
        if device.type == "cpu":
            return self
        moved = {name: tensor.to(device, non_blocking=True) for name in ("position_ids", "labelled", "labels", "real")
                 if (tensor := getattr(self, name)) is not None}  # fmt: skip
        more: dict[str, Any] = {}
        if self.teacher is not None:
            more["teacher"] = self.teacher.to(device)
        if self.images is not None:
            more["images"] = {name: tensor.to(device, non_blocking=True) for name, tensor in self.images.items()}
        return replace(self, **moved, **more)

    def part(self, whole: torch.Tensor) -> torch.Tensor:
        """Its rows of a [tokens of the step, ...] tensor."""
        return whole[self.first : self.first + self.tokens]


@dataclass(frozen=True)
class Work:
    """All micro-batches of one step or evaluation."""

    ids: torch.Tensor  # int64 [tokens], one micro-batch after the other
    micro_batches: list[MicroBatch]
    there: torch.Tensor | None = None  # `ids` where layers compute; None: as they are
    over: int | None = None  # what the loss is a mean of, where a caller counts otherwise than `units`
    routers: float | None = None  # as `routers_weight`, where a caller has it otherwise
    whole: int | None = None  # micro-batches of the step that this is a part of; None: it is all of it
    whole_labels: int | None = None  # label tokens of that step

    def to(self, device: torch.device) -> Work:
        """For passes there; `ids` stay with the host as well, which gathers the embedding's rows."""
        if device.type == "cpu":
            return self
        batches = [batch.to(device) for batch in self.micro_batches]
        return replace(self, micro_batches=batches, there=self.ids.to(device, non_blocking=True))

    def ids_of(self, batch: MicroBatch) -> torch.Tensor:
        """The ids of one micro-batch, where layers compute."""
        return batch.part(self.ids if self.there is None else self.there)

    @property
    def tokens(self) -> int:
        return self.ids.numel()

    @property
    def step_batches(self) -> int:
        """Micro-batches of the whole step, those of other processes too."""
        return len(self.micro_batches) if self.whole is None else self.whole

    @property
    def ranks(self) -> int:
        """Virtual ranks that have a micro-batch."""
        return 1 + self.micro_batches[-1].rank if self.micro_batches else 0

    @property
    def counts(self) -> list[int]:
        return [batch.tokens for batch in self.micro_batches]

    @property
    def units(self) -> int:
        """The number of units that the loss is a mean over; see MicroBatch.units."""
        return self.over or sum(batch.units for batch in self.micro_batches)

    @property
    def step_labels(self) -> int:
        """Label tokens of the whole step, those of other processes too."""
        own = sum(batch.labelled.numel() for batch in self.micro_batches)
        return own if self.whole_labels is None else self.whole_labels

    @property
    def routers_weight(self) -> float:
        """How much of each micro-batch's routers' loss a step adds: all of it, as transformers does for a loss over
        label tokens; of pairs the mean, as accumulation has it."""
        if self.routers is not None:
            return self.routers
        compares = bool(self.micro_batches) and self.micro_batches[0].rows_each > 0
        return 1 / self.step_batches if compares else 1.0

    def part(self, share: slice) -> Work:
        """The micro-batches at these positions of the step's order, for one who computes no others. The loss is a mean
        of what it is a mean of in the whole step."""
        taken = self.micro_batches[share]
        first, rank = (taken[0].first, taken[0].rank) if taken else (0, 0)
        moved = [
            replace(batch, index=index, first=batch.first - first, rank=batch.rank - rank)
            for index, batch in enumerate(taken)
        ]
        ids = self.ids[first : first + sum(batch.tokens for batch in taken)]
        return replace(self, ids=ids, micro_batches=moved, over=self.units, whole=self.step_batches,
                       whole_labels=self.step_labels)  # fmt: skip


def group_by_virtual_rank(micro_batches: int, ranks: int) -> list[list[int]]:
    """The micro-batches of each virtual rank, numbered in the data's order. A step takes the ranks one after the other,
    and leaves out those without any (plan/virtual_ranks.h)."""
    return [list(range(rank, micro_batches, ranks)) for rank in range(min(ranks, micro_batches))]


def share_of(micro_batches: int, virtual_ranks: int, rank: int, world: int) -> slice:
    """The positions in the step's order of what one of `world` processes computes: contiguous virtual ranks, of those
    that have any, as the engine has it."""
    return slice(*share_of_step(virtual_ranks, micro_batches, rank, world)) if micro_batches else slice(0, 0)


@dataclass(frozen=True)
class Share:
    """Which micro-batches of each step this process computes, and how it hears of the others' losses."""

    rank: int = 0
    world: int = 1
    virtual_ranks: int = 1
    gather: Callable[[Any], list[Any]] = lambda value: [value]  # what each process gives, by rank

    def take(self, micro_batches: int) -> slice:
        return share_of(micro_batches, self.virtual_ranks, self.rank, self.world)

    def most(self, micro_batches: int) -> int:
        """The most that any process computes of a step of so many or fewer."""
        shares = (
            share_of(count, self.virtual_ranks, rank, self.world)
            for count in range(1, micro_batches + 1)
            for rank in range(self.world)
        )
        return micro_batches if self.world == 1 else max(share.stop - share.start for share in shares)


ALL = Share()


def arrange(
    batches: Sequence[Batch], over: int | None = None, routers: float | None = None, virtual_ranks: int = 1
) -> Work:
    """Shifts the labels (a token predicts the next one of its row) and lays the micro-batches one after the other, in
    the order of virtual ranks."""
    arranged, first = [], 0
    ranks = group_by_virtual_rank(len(batches), virtual_ranks)
    order = [(rank, number) for rank, numbers in enumerate(ranks) for number in numbers]
    for index, (rank, number) in enumerate(order):
        batch = batches[number]
        rows, length = batch.input_ids.shape
        following = torch.full_like(batch.labels, IGNORED)
        following[:, :-1] = batch.labels[:, 1:]
        following = following.view(-1)
        labelled = (following != IGNORED).nonzero().view(-1)
        if batch.scored is not None:  # the head gives no tokens, so that labels are none
            labelled, following = batch.scored, torch.zeros_like(following)
        real = real_tokens(batch.lengths, length)
        labels, ones = following[labelled], 0.0 if real is None else float(real.sum())
        bounds = tuple(torch.searchsorted(labelled, torch.arange(rows + 1) * length).tolist())
        arranged.append(MicroBatch(index, first, rows, length, batch.position_ids, labelled, labels, real,
                                consecutive(labelled), ones, bounds, batch.reference, batch.rows_each,
                                () if batch.prompts is None else tuple(batch.prompts.tolist()),
                                batch.verdicts, batch.targets, batch.teacher, batch.sampled, batch.images,
                                number, rank, number == ranks[rank][-1]))  # fmt: skip
        first += rows * length
    ids = torch.cat([batches[number].input_ids.reshape(-1) for _, number in order])
    return Work(ids, arranged, over=over, routers=routers)


def consecutive(tokens: torch.Tensor) -> slice | None:
    """The slice that rising token numbers are, if they are one."""
    if not tokens.numel():
        return None
    first, last = int(tokens[0]), int(tokens[-1])
    return slice(first, last + 1) if last - first + 1 == tokens.numel() else None


def real_tokens(lengths: torch.Tensor | None, length: int) -> torch.Tensor | None:
    if lengths is None or bool((lengths == length).all()):
        return None
    return (torch.arange(length) < lengths[:, None]).float().view(-1)
