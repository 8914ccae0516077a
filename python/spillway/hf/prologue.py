"""What each layer is given besides the hidden state: recorded from the model's own forward pass.

The backbone runs once with every layer replaced by a recorder that hands its hidden state on, so that masks, rotary
tables and positions are the model's own, with no guess about them. On the way it is checked that the backbone does
nothing to the hidden state between the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from spillway.hf.microbatch import MicroBatch
from spillway.hf.skeleton import Skeleton, refusal


@dataclass(frozen=True)
class Arguments:
    """One call of one layer, the hidden state left out."""

    keyword: str | None  # the hidden state's keyword; None: it is the first positional argument
    positional: tuple[Any, ...]  # what follows the hidden state
    keywords: dict[str, Any]

    def call(self, module: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        if self.keyword is None:
            result = module(hidden, *self.positional, **self.keywords)
        else:
            result = module(**{self.keyword: hidden}, **self.keywords)
        return result[0] if isinstance(result, tuple) else result


def record(skeleton: Skeleton, batch: MicroBatch) -> list[Arguments]:
    """Arguments of every module of `skeleton.stack` for one micro-batch."""
    hidden = torch.empty(1, dtype=skeleton.dtype).expand(batch.rows, batch.length, skeleton.hidden_size)
    calls: list[Arguments] = []

    def recorder(place: int) -> Callable[..., torch.Tensor]:
        def forward(*positional: Any, **keywords: Any) -> torch.Tensor:
            if place != len(calls):
                raise refusal(skeleton.config.model_type, "its layers are not called one after the other")
            calls.append(without_hidden(positional, keywords, hidden, skeleton.config.model_type))
            return hidden

        return forward

    forwards: dict[nn.Module, Callable[..., torch.Tensor]] = {skeleton.embedding: lambda *_, **__: hidden}
    forwards |= {module: recorder(place) for place, module in enumerate(skeleton.stack)}
    ids = torch.zeros(1, dtype=torch.int64).expand(batch.rows, batch.length)
    with torch.no_grad(), replaced_forwards(forwards):
        last = skeleton.backbone(input_ids=ids, position_ids=batch.position_ids, use_cache=False).last_hidden_state
    if len(calls) != len(skeleton.stack) or last is not hidden:
        raise refusal(skeleton.config.model_type, "its backbone changes the hidden state outside its layers")
    return calls


def without_hidden(positional: tuple[Any, ...], keywords: dict[str, Any], hidden: torch.Tensor, kind: str) -> Arguments:
    if positional and positional[0] is hidden:
        return Arguments(None, positional[1:], keywords)
    for name, value in keywords.items():
        if value is hidden and not positional:
            return Arguments(name, (), {key: item for key, item in keywords.items() if key != name})
    raise refusal(kind, "its backbone changes the hidden state between its layers")


@contextmanager
def replaced_forwards(forwards: dict[nn.Module, Callable[..., torch.Tensor]]) -> Iterator[None]:
    for module, forward in forwards.items():
        module.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in forwards:
            del module.forward


class Prologue:
    """Arguments of a step's micro-batches; equal shapes without packing share theirs."""

    def __init__(self, skeleton: Skeleton) -> None:
        self._skeleton = skeleton

    def record(self, batches: list[MicroBatch]) -> list[list[Arguments]]:
        """By micro-batch, then by module of the stack."""
        known: dict[tuple[int, int], list[Arguments]] = {}
        calls = []
        for batch in batches:
            shape = (batch.rows, batch.length)
            if batch.position_ids is not None:
                calls.append(record(self._skeleton, batch))
                continue
            if shape not in known:
                known[shape] = record(self._skeleton, batch)
            calls.append(known[shape])
        return calls
