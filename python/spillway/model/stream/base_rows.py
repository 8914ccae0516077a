"""The reference of a step: its rows through the base of its adapters, beside their way through the whole model.

While a layer's weights are in memory, each micro-batch runs forward with adapters, and then without them and without
gradient. So a loss that compares with the base reads the base no more often than a loss that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from spillway.model.batches.microbatch import MicroBatch, Work
from spillway.model.head.head import HeadPass
from spillway.model.head.objective import RowSums
from spillway.model.layers.token_tiles import Parts
from spillway.model.meta.meta_model import MetaModel
from spillway.model.stream.layer import Stage
from spillway.model.stream.passage import Passage
from spillway.model.stream.regions import Regions


def find_unreferred(work: Work) -> list[int]:
    """The micro-batches without log-probabilities of a reference, by index."""
    return [batch.index for batch in work.micro_batches if batch.reference is None]


def make_room(work: Work, missing: list[int]) -> Work:
    """The work with room for the reference of the micro-batches `missing`, which `BaseRows.fill` fills."""
    if not missing:
        return work
    batches = [add_room(batch) if batch.index in missing else batch for batch in work.micro_batches]
    return replace(work, micro_batches=batches)


def add_room(batch: MicroBatch) -> MicroBatch:
    count = batch.rows if batch.sampled is None else batch.labelled.numel()
    return replace(batch, reference=torch.full((count,), torch.nan, dtype=torch.float64))


@contextmanager
def run_base(module: nn.Module) -> Iterator[None]:
    """Modules compute the base of PEFT's adapters alone while this is open, and drop nothing, as in an evaluation."""
    training = [each for each in module.modules() if each.training]
    layers: list[Any] = [each for each in module.modules() if hasattr(each, "_disable_adapters")]
    try:
        for each in training:
            each.training = False
        for layer in layers:
            layer._disable_adapters = True
        yield
    finally:
        for each in training:
            each.training = True
        for layer in layers:
            layer._disable_adapters = False


class BaseRows:
    """The rows of one step or evaluation."""

    def __init__(
        self,
        meta_model: MetaModel,
        work: Work,
        passages: list[Passage],
        hidden: torch.Tensor,
        parts: Parts,
        make_head: Callable[[RowSums], HeadPass],
        temperature: float,
        missing: list[int],
    ) -> None:
        """`passages`: of the rows, without routers. `hidden`: flat, room for the hidden states of all rows at one
        layer. `make_head`: the head's passes for an objective. `missing`: the micro-batches that want a
        reference."""
        self._meta_model, self._work, self._passages = meta_model, work, passages
        self._regions, self._parts = Regions(meta_model, hidden), parts
        self._sums = RowSums(work, temperature=temperature)
        self._head = make_head(self._sums)
        self._missing = missing

    def forward(self, stage: Stage, place: int, entry: Callable[[MicroBatch, Passage], torch.Tensor]) -> None:
        """Runs a stage that is bound. `entry`: the embedding's rows, which the first stage takes."""
        plan, model = stage.plan, self._meta_model
        alone = plan.layer is not None and not plan.entry and not plan.tail
        module = model.layers[plan.layer] if alone and plan.layer is not None else model.model
        with run_base(module):
            for batch in self._work.micro_batches:
                passage = self._passages[batch.index]
                self._parts.open(batch)
                source = entry(batch, passage) if place == 0 else self._regions.input(0, place, batch, passage)
                output = stage.forward(source, batch, self._work.ids_of(batch), passage)
                passage.shapes[place] = output.shape
                self._regions.output(0, place, batch, passage).copy_(output)

    def add_loss(self, table: torch.Tensor, first_row: int) -> None:
        """The head's first pass of one slice."""
        self._head.add_loss(self._regions.head_input(0, self._work.tokens), table, first_row)

    def fill(self) -> None:
        """Gives the micro-batches their reference, when every slice has been seen."""
        if not self._missing:
            return
        self._head.losses()
        for index in self._missing:
            reference = self._work.micro_batches[index].reference
            assert reference is not None
            reference.copy_(torch.tensor(self._sums.rows[index], dtype=torch.float64))
        self._missing = []
