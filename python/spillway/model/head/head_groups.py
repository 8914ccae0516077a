"""Label tokens whose logits the head makes in one product.

On CPUs a group is one tile of a micro-batch, so that few logits exist at once. On a GPU it is all label tokens of a
virtual rank: one product for the logits, one for the hidden states' gradient and one for the table's, whatever the
number of micro-batches. Groups follow from the step's micro-batches and the configuration alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from spillway.model.batches.microbatch import MicroBatch
from spillway.model.layers.token_tiles import Parts, TokenTiles, bounds

if TYPE_CHECKING:
    from spillway.model.batches.batch import WorkShape
    from spillway.model.meta.meta_model import MetaModel

TOKENS_ON_GPU = 2**17  # label tokens of a group at most: logits of a 4M-element slice take 0.7 GB at 1.5B, 0.3 GB at 7B


@dataclass(frozen=True)
class Member:
    """Label tokens of one micro-batch in a group."""

    batch: MicroBatch
    tokens: slice  # of the micro-batch's label tokens
    first: int  # where they begin among the group's

    @property
    def size(self) -> int:
        return int(self.tokens.stop - self.tokens.start)

    @property
    def place(self) -> slice:
        """Its tokens among the group's."""
        return slice(self.first, self.first + self.size)


@dataclass(frozen=True)
class Group:
    """Label tokens of one virtual rank, in the step's order."""

    members: tuple[Member, ...]  # at least one; its tokens may be none
    part: int  # of the step's gradients: the last one of the last member

    @property
    def size(self) -> int:
        """Label tokens."""
        return self.members[-1].first + self.members[-1].size

    @property
    def rank(self) -> int:
        return self.members[0].batch.rank

    @property
    def first_row(self) -> int:
        """The row of the first token's fp32 sums, in [tokens of the step, hidden]; the others follow."""
        first = self.members[0]
        return first.batch.first + first.tokens.start

    def labels(self) -> torch.Tensor:
        """int64 [size]"""
        return concatenate(member.batch.labels[member.tokens] for member in self.members)

    def rows(self) -> torch.Tensor:
        """int64 [size]: the tokens' rows among all tokens of the step."""
        return concatenate(member.batch.labelled[member.tokens] + member.batch.first for member in self.members)

    def run(self) -> slice | None:
        """The same as one slice, where the tokens are consecutive and of one micro-batch."""
        batch, tokens = self.members[0].batch, self.members[0].tokens
        if len(self.members) > 1 or batch.run is None:
            return None
        first = batch.first + batch.run.start
        return slice(first + tokens.start, first + tokens.stop)


def extra_bytes(tiles: TokenTiles, shape: WorkShape, narrow: MetaModel) -> int:
    """Bytes that the head holds of all micro-batches of a step beyond those of one: hidden states [tokens, columns] of
    all of them, logits [tokens, rows] and a product [tokens, columns] of a group. `narrow`: a copy of the model whose
    vocabulary is one slice."""
    if tiles.head_tokens is None:
        return 0
    rows, columns = narrow.head.weight.shape
    tokens = shape.batch * shape.length
    of_rank = -(-shape.micro_batches // shape.virtual_ranks) * tokens
    group = min(of_rank, max(tokens, tiles.head_tokens))
    return ((shape.largest_share - 1) * tokens * columns + (group - tokens) * (rows + columns)) * narrow.dtype.itemsize


def form_groups(batches: Sequence[MicroBatch], parts: Parts, by_batch: bool = False) -> list[Group]:
    """The groups of a step or evaluation, in its order. `parts`: of the step, which has begun. `by_batch`: every
    micro-batch is a group of its own."""
    if by_batch:
        return [join_batches([batch], parts) for batch in batches]
    most = parts.tiles.head_tokens
    if most is None:
        return [group for batch in batches for group in split_into_tiles(batch, parts)]
    groups: list[Group] = []
    pending: list[MicroBatch] = []
    tokens = 0
    for batch in batches:
        if pending and (pending[-1].ends_rank or tokens + batch.labelled.numel() > most):
            groups.append(join_batches(pending, parts))
            pending, tokens = [], 0
        pending.append(batch)
        tokens += batch.labelled.numel()
    return [*groups, join_batches(pending, parts)] if pending else groups


def split_into_tiles(batch: MicroBatch, parts: Parts) -> list[Group]:
    """A group for each tile of a micro-batch; one group without tokens where the micro-batch has no label."""
    tokens = batch.labelled.numel()
    count = parts.tiles.count(tokens)
    tiles = [slice(first, after) for first, after in bounds(tokens, count)]
    return [make_group([(batch, tile)], parts.number(batch, number, count)) for number, tile in enumerate(tiles)]


def join_batches(batches: Sequence[MicroBatch], parts: Parts) -> Group:
    runs = [(batch, slice(0, batch.labelled.numel())) for batch in batches]
    return make_group(runs, parts.number(batches[-1], 0, 1))


def make_group(runs: Iterable[tuple[MicroBatch, slice]], part: int) -> Group:
    members: list[Member] = []
    first = 0
    for batch, tokens in runs:
        members.append(Member(batch, tokens, first))
        first += members[-1].size
    return Group(tuple(members), part)


def concatenate(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    every = list(tensors)
    return every[0] if len(every) == 1 else torch.cat(every)
