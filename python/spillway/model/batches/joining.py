"""Micro-batches of a step that share their passes.

Asking a GPU for the operations of a layer takes the host milliseconds, whatever the number of tokens. The GPU computes
a short row in less. So consecutive micro-batches are computed as one micro-batch with the rows of all, up to
`pass_tokens` tokens. Configuration and data alone decide how many: another number sums gradients in another order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from spillway.model.batches.batch import Batch, WorkShape
from spillway.model.batches.microbatch import IGNORED
from spillway.model.source.source import is_classifier

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.model.meta.meta_model import MetaModel

TOKENS_ON_GPU = 2**15  # of `auto`


def reason_against(config: Config, meta_model: MetaModel) -> str:
    """Why micro-batches have passes of their own, as the end of a sentence; empty: they may share them."""
    if config.objective_entry.compares:
        return "a step's loss is the mean over its micro-batches of compared rows"
    if config.objective_entry.has_teacher:
        return "each label token has its teacher's distribution beside it"
    if is_classifier(meta_model.config):
        return "a step's loss is the mean over its micro-batches of scored rows"
    if config.virtual_ranks > 1 or config.ranks.world > 1:
        return "virtual ranks sum the gradients of whole micro-batches"
    if meta_model.routers is not None:
        return "the routers' loss is one of each micro-batch"
    return "reduced gradients are of whole micro-batches" if meta_model.spaces else ""


def join_shape(shape: WorkShape, config: Config, meta_model: MetaModel) -> WorkShape:
    """The shape of a step whose micro-batches share their passes as `pass_tokens` says. Those with images do not: each
    has its own."""
    tokens = config.pass_tokens
    if tokens == "auto":
        tokens = TOKENS_ON_GPU if config.device.startswith("cuda") else 0
    most = int(tokens) // max(1, shape.batch * shape.length)
    if most < 2 or shape.largest_images is not None or reason_against(config, meta_model):
        return shape
    groups = math.ceil(shape.micro_batches / most)
    count = math.ceil(shape.micro_batches / groups)
    return replace(shape, micro_batches=groups, batch=shape.batch * count, joined=count)


def joining_notice(shape: WorkShape) -> list[str]:
    """For a person, where micro-batches share passes."""
    if shape.joined == 1:
        return []
    rows = shape.batch // shape.joined
    return [f"pass_tokens: a pass computes {shape.joined} micro-batches of {rows} x {shape.length} tokens together"]


def join(batches: Sequence[Batch], count: int) -> list[Batch]:
    """Each `count` consecutive micro-batches as one, the last of them of what is left."""
    if count == 1:
        return list(batches)
    return [concatenate(batches[first : first + count]) for first in range(0, len(batches), count)]


def concatenate(batches: Sequence[Batch]) -> Batch:
    """One micro-batch of all rows, padded on the right to the longest."""
    if len(batches) == 1:
        return batches[0]
    assert all(batch.images is None for batch in batches)
    length = max(batch.input_ids.shape[1] for batch in batches)
    lengths = torch.cat([lengths_of(batch) for batch in batches])
    positions = [batch.position_ids for batch in batches if batch.position_ids is not None]
    return Batch(
        torch.cat([pad(batch.input_ids, length, 0) for batch in batches]),
        torch.cat([pad(batch.labels, length, IGNORED) for batch in batches]),
        torch.cat([pad(each, length, 0) for each in positions]) if positions else None,
        sum(batch.tokens for batch in batches),
        None if bool((lengths == length).all()) else lengths,
    )


def lengths_of(batch: Batch) -> torch.Tensor:
    """int64 [rows]: of each row, without its padding."""
    rows, length = batch.input_ids.shape
    return torch.full((rows,), length) if batch.lengths is None else batch.lengths


def pad(tensor: torch.Tensor, length: int, value: int) -> torch.Tensor:
    """[rows, length] of whole numbers."""
    return functional.pad(tensor, (0, length - tensor.shape[1]), value=value)
