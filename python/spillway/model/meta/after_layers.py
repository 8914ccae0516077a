"""The model's own code after its layers: up to the head's matrix, and from the logits that the matrix makes.

Both by running the model with its layers left out, so that final norms, projections, scales and caps are the model's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spillway.model.batches.microbatch import MicroBatch
from spillway.model.meta.layer_arguments import embedded_rows
from spillway.model.meta.meta_model import MetaModel
from spillway.model.source.model_code import Left, call_without_layers, in_form, refusal, replaced_forwards


def head_input(meta_model: MetaModel, batch: MicroBatch, last: torch.Tensor) -> torch.Tensor:
    """The input of the head's matrix, [rows, length, columns], when the last layer returns `last`."""
    inputs: list[torch.Tensor] = []

    def head(hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        inputs.append(hidden)
        raise Left

    with replaced_forwards({meta_model.head: head}):
        run_without_layers(meta_model, batch, last, last.device)
    if not inputs or inputs[0].shape[:-1] != (batch.rows, batch.length):
        raise refusal(meta_model.config.model_type, "its head is not called once for every token")
    return inputs[0]


def transformed_logits(meta_model: MetaModel, logits: torch.Tensor) -> torch.Tensor:
    """The model's logits for its head's output [1, tokens, rows], which may be a slice of the vocabulary.

    Each token is a sequence of its own, since there may be more of them than a sequence has positions."""
    none = torch.empty(0, dtype=torch.int64)
    tokens = logits.shape[1]
    batch = MicroBatch(0, 0, tokens, 1, None, none, none)
    with (
        replaced_forwards({meta_model.head: lambda *_, **__: logits.view(tokens, 1, -1)}),
        meta_model.stand_ins(meta_model.tail, logits.device),
    ):
        made = run_without_layers(meta_model, batch, None, logits.device).logits
    if made.shape[:2] != (tokens, 1):
        raise refusal(meta_model.config.model_type, "it does not give logits of every token")
    return made.reshape(1, tokens, -1)  # type: ignore[no-any-return]


def run_without_layers(
    meta_model: MetaModel,
    batch: MicroBatch,
    last: torch.Tensor | None,
    device: torch.device | None = None,
    **more: Any,
) -> Any:
    """Calls the model; its layers hand on what they are given, the last returns `last` (None: what it was given).

    `more`: further arguments of the model.
    """

    calls: list[int] = []

    def handed_on(place: int) -> Callable[..., Any]:
        def forward(*positional: Any, **keywords: Any) -> Any:
            calls.append(place)
            if len(calls) > len(meta_model.layers):
                raise refusal(meta_model.config.model_type, "its layers are called more than once")
            hidden = positional[0] if positional else keywords["hidden_states"]
            if place == len(meta_model.layers) - 1 and last is not None:
                hidden = last
            return in_form(hidden, meta_model.form)

        return forward

    rows = torch.zeros((), dtype=meta_model.dtype, device=device).expand(batch.tokens, meta_model.columns)
    ids = torch.zeros(1, dtype=torch.int64, device=device).expand(batch.rows, batch.length)
    forwards: dict[Any, Callable[..., Any]] = {layer: handed_on(place) for place, layer in enumerate(meta_model.layers)}
    with embedded_rows(meta_model, rows, batch), replaced_forwards(forwards), meta_model.stand_ins(device=device):
        try:
            return call_without_layers(meta_model.model, ids, batch.position_ids, **more)
        except Left:
            return None
