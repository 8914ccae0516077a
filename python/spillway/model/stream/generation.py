"""A streamed model that can be called and asked to generate: its weights stay where they are.

Every forward pass streams all layers once, so text comes slowly; it is for looking at what a run has learned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from spillway.errors import InputError

Logits = Callable[[torch.Tensor, int], torch.Tensor]  # ids [rows, length], how many last positions -> their logits


class Streamed:
    """Goes before a model's own class."""

    _logits: Logits
    evaluation = "session.evaluate(batch)"  # the call that gives the loss

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        logits_to_keep: int = 0,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """logits: [rows, positions kept, vocabulary], zero for padding; 0 keeps all."""
        if input_ids is None:
            raise InputError("model: it takes input_ids")
        if others.get("labels") is not None:
            raise InputError(f"labels: the model gives logits alone; {self.evaluation} gives the loss")
        if others.get("pixel_values") is not None:
            raise InputError(f"pixel_values: the model gives logits of text alone; {self.evaluation} takes images")
        last = int(logits_to_keep)
        if attention_mask is None or bool(attention_mask.all()):
            logits = self._logits(input_ids.cpu(), last)
        else:
            logits = compute_row_by_row(self._logits, input_ids.cpu(), attention_mask.cpu(), last)
        return CausalLMOutputWithPast(logits=logits.to(input_ids.device))

    def generate(self, *positional: Any, **named: Any) -> Any:
        """Generates as the library's own method does, without a cache of keys and values."""
        return super().generate(*positional, **{**named, "use_cache": False})  # type: ignore[misc]

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")


def compute_row_by_row(logits: Logits, ids: torch.Tensor, mask: torch.Tensor, last: int) -> torch.Tensor:
    """The logits of padded rows, each computed without its padding. InputError for any other mask."""
    length = ids.shape[1]
    begin = length - min(last or length, length)
    rows = []
    for row, seen in zip(ids, mask if mask.shape == ids.shape else (), strict=False):
        places = seen.nonzero().view(-1).tolist()
        if not places or places[-1] - places[0] + 1 != len(places):
            break
        first, after = max(begin, places[0]), places[-1] + 1
        row_logits = logits(row[places[0] : after][None], max(1, after - first))[0]
        padded = row_logits.new_zeros(length - begin, row_logits.shape[1])
        if after > first:
            padded[first - begin : after - begin] = row_logits
        rows.append(padded)
    if len(rows) < len(ids):
        raise InputError("attention_mask: it may mark padding before a row, or after it, and nothing else")
    return torch.stack(rows)


def callable_model(model: PreTrainedModel, logits: Logits) -> PreTrainedModel:
    """`model`, on meta, with a forward pass that `logits` computes. Shares everything else with it."""
    kind: Any = type(f"Streamed{type(model).__name__}", (Streamed, type(model)), {})
    made: PreTrainedModel = kind.__new__(kind)
    made.__dict__ = {**model.__dict__, "_logits": logits}
    made.training = False  # of the copy alone: its parts are the meta model's
    return made
