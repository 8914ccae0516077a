"""The longest row that a model has positions for, by its table of learned or computed positions.

The limit is found by trying a tiny copy with rows of all lengths, and the key that it follows by making that key
smaller. So no list of model types is needed, and a model without such a limit has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig

from spillway.errors import InputError
from spillway.model.source.model_code import call_model
from spillway.model.source.source import text_config
from spillway.model.source.tiny_copy import LENGTH, POSITIONS, tiny_copy

LESS = 16  # rows taken from a table to find the key that its limit follows
Make = Callable[[PreTrainedConfig], Any]  # the library's own model of a configuration, with weights


@dataclass(frozen=True)
class Positions:
    """Tokens of the longest row, and the key of config.json that says so."""

    most: int
    key: str
    value: int


def find_positions(config: PreTrainedConfig, model: Any, make: Make) -> Positions | None:
    """The positions of `model`, a tiny copy of `config`; None if rows may have any length."""
    small = text_config(model.config)
    keys = [name for name in POSITIONS if type(small.to_dict().get(name)) is int]
    most = max((getattr(small, name) for name in keys), default=0)
    if most <= LESS or (limit := find_longest_row(model, 2 * most + LESS)) is None:
        return None
    for key in keys:
        value = getattr(small, key)
        less = make(tiny_copy(config, **{key: value - LESS}))
        if find_longest_row(less, 2 * most + LESS) == limit - LESS:
            real = int(getattr(text_config(config), key))
            return Positions(real - (value - limit), key, real)
    return None


def find_longest_row(model: Any, most: int) -> int | None:
    """The longest row that the model computes; None if it computes `most` tokens, or no row at all."""
    if can_compute(model, most) or not can_compute(model, LENGTH):
        return None
    low, high = LENGTH, most  # a length that the model computes, and one that it does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if can_compute(model, middle) else (low, middle)
    return low


def can_compute(model: Any, length: int) -> bool:
    ids = torch.full((1, length), 3)
    try:
        with torch.no_grad():
            call_model(model, ids)
    except Exception:  # an index beyond a table, or shapes that do not go together
        return False
    return True


def refuse_longer(positions: Positions | None, length: int, kind: str) -> None:
    """InputError if a row of `length` tokens has no positions."""
    if positions is not None and length > positions.most:
        raise InputError(
            f"max_length: there is a row of {length} tokens, but {kind} has positions for {positions.most} "
            f"({positions.key}: {positions.value} in its config.json); use --max_length {positions.most}"
        )
