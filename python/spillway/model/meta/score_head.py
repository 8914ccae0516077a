"""Models whose head gives scores of a few labels in place of logits of the vocabulary.

The library's class for rows takes the scores of one token of each. Here its forward pass gives those of every token, as
a causal language model does, so that all that finds, verifies and streams such models holds for these, too. Which
tokens count is the batch's to say.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from spillway.model.source.model_code import refusal
from spillway.model.source.source import classifies_tokens

HEAD = "score"
DROPOUT = "dropout"  # what stands before the head of a class for tokens


class EveryToken:
    """Goes before a classifier's own class."""

    def forward(self, **keywords: Any) -> CausalLMOutput:
        """logits: [rows, length, labels]. `keywords`: those of the model without a head."""
        model: Any = self
        hidden = model.base_model(**keywords).last_hidden_state
        if classifies_tokens(model.config):
            hidden = getattr(model, DROPOUT)(hidden)
        return CausalLMOutput(logits=getattr(model, HEAD)(hidden))


def score_every_token(model: PreTrainedModel) -> PreTrainedModel:
    """The same model, whose class keeps its name. InputError where its head is none of the library's usual kind."""
    if not isinstance(getattr(model, HEAD, None), nn.Linear):
        raise refusal(model.config.model_type, f"its head of labels is no linear layer named {HEAD}")
    kind = type(model)

    @functools.wraps(kind.forward)  # the signature by which a Trainer chooses columns and arguments
    def forward(self: Any, **keywords: Any) -> CausalLMOutput:
        return EveryToken.forward(self, **keywords)

    attributes = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    model.__class__ = type(kind.__name__, (EveryToken, kind), attributes)
    return model


def find_scored(ids: torch.Tensor, pad: int | None, lengths: torch.Tensor | None = None) -> torch.Tensor:
    """int64 [rows]: of each row the token whose scores count, counted row by row. By the library's rule that is the
    last one that is no padding. ids: [rows, length]. `pad`: None: rows end at `lengths`, or at their last token."""
    rows, length = ids.shape
    if pad is not None:
        last = (torch.arange(length) * (ids != pad)).argmax(1)
    else:
        last = torch.full((rows,), length - 1) if lengths is None else lengths - 1
    return torch.arange(rows) * length + last
