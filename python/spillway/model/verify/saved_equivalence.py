"""Proof that layers of a type of model may keep what autograd saves: bit-identical gradients on a tiny copy, whose
memory moves between forward and backward."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from spillway.model.batches.microbatch import Work
from spillway.model.layers.saved import RECOMPUTE_ALL, SavedChoice
from spillway.model.layers.token_tiles import ALL_AT_ONCE, TokenTiles
from spillway.model.meta.describe import WorkSize, describe
from spillway.model.meta.meta_model import MetaModel
from spillway.model.source.source import first_line
from spillway.model.stream.plain_engine import PlainEngine, mapped
from spillway.model.stream.saved_layers import NOT_ALONE, SHARING, keep_all
from spillway.model.stream.stream import Stream

SPOILT = 0xFF  # every number of such bytes is NaN
OTHER_BITS = "the gradients of a small copy of it are other bits where its layers keep what autograd saves"
ROUTERS = "the loss of its routers is known only when all of its layers have run"


class MovedEngine(PlainEngine):
    """One step, between whose forward and backward passes all that lies in the engine's memory moves elsewhere, and
    what is left behind is spoilt: whoever still looks there finds no number."""

    def end_pass(self) -> None:
        last = self._pass.kind == "forward" and self._pass.block == self._layers[-1]
        super().end_pass()
        if last:
            self._move()

    def _lay_out(self) -> None:
        super()._lay_out()
        self._half, self._moved = self._arena.numel(), 0
        self._arena = mapped(2 * self._half)
        self._typed = self._arena.view(self.dtype)

    def _move(self) -> None:
        self._arena[self._half : 2 * self._half].copy_(self._arena[: self._half])
        self._arena[: self._half].fill_(SPOILT)
        self._moved = self._half
        self._gradient_at += self._half
        self._sums_at += self._half

    def _weights_at(self, block: int) -> int:
        return super()._weights_at(block) + self._moved

    def _boundary_at(self, place: int) -> int:
        return super()._boundary_at(place) + self._moved


def why_not_kept(
    meta_model: MetaModel,
    parameters: Mapping[str, torch.Tensor],
    work: Work,
    unneeded: Collection[str],
    tiles: TokenTiles = ALL_AT_ONCE,
) -> str:
    """Why no layer may keep what autograd saves, as the end of a sentence; empty: layers may. `parameters`: of the tiny
    copy that `meta_model` is of."""
    if meta_model.routers is not None:
        return ROUTERS
    choice = keep_all(meta_model)
    if not choice.stages:
        return NOT_ALONE
    try:
        expected, _ = outcome(meta_model, parameters, work, unneeded, RECOMPUTE_ALL, tiles)
        gradients, kept = outcome(meta_model, parameters, work, unneeded, choice, tiles)
    except RuntimeError as error:  # of what a layer's own code does with history
        return f"{OTHER_BITS}: {first_line(error)}"
    if not kept:
        return SHARING
    return "" if same(expected, gradients) else OTHER_BITS


def outcome(
    meta_model: MetaModel,
    parameters: Mapping[str, torch.Tensor],
    work: Work,
    unneeded: Collection[str],
    choice: SavedChoice,
    tiles: TokenTiles = ALL_AT_ONCE,
) -> tuple[dict[Any, torch.Tensor], bool]:
    """Loss and gradients of a step, and whether anything was kept in it."""
    description = describe(meta_model, WorkSize(len(work.micro_batches), work.tokens), "fp32")
    engine = MovedEngine(description, chunk_elements=64 * description.hidden_size)
    for number, tensor in enumerate(engine.tensors):
        engine.weight(number).copy_(parameters[tensor.name].detach())
    stream = Stream(meta_model, engine, 0, unneeded, saved=choice, tiles=tiles)
    try:
        loss = stream.step(work).loss_sum
        return {"loss": torch.tensor(loss), **engine.gradients}, bool(stream.last_saved.kept)
    finally:
        stream.close()


def same(one: Mapping[Any, torch.Tensor], other: Mapping[Any, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())
