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

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        logits_to_keep: int = 0,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """logits: [rows, positions kept, vocabulary]; 0 keeps all."""
        if input_ids is None:
            raise InputError("model: it takes input_ids")
        if others.get("labels") is not None:
            raise InputError("model: the loss of a batch is session.evaluate(batch)")
        if attention_mask is not None and not bool(attention_mask.all()):
            raise InputError("attention_mask: rows are of one length here; call with one row at a time")
        return CausalLMOutputWithPast(logits=self._logits(input_ids, int(logits_to_keep)))

    def generate(self, *positional: Any, **named: Any) -> Any:
        """Generates as the library's own method does, without a cache of keys and values."""
        return super().generate(*positional, **{**named, "use_cache": False})  # type: ignore[misc]

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")


def callable_model(model: PreTrainedModel, logits: Logits) -> PreTrainedModel:
    """`model`, on meta, with a forward pass that `logits` computes. Shares everything else with it."""
    kind: Any = type(f"Streamed{type(model).__name__}", (Streamed, type(model)), {})
    made: PreTrainedModel = kind.__new__(kind)
    made.__dict__ = {**model.__dict__, "_logits": logits}
    made.training = False  # of the copy alone: its parts are the meta model's
    return made
