"""Arguments of a layer as nested values: the tensors in them, copies with other tensors, whether two are alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

Change = Callable[[torch.Tensor], torch.Tensor]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """In a fixed order, a tensor that occurs twice given twice."""
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for inner in parts(value):
            yield from tensors_in(inner)


def parts(value: Any) -> list[Any]:
    if isinstance(value, MutableMapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return []


def rebuilt(value: Any, change: Change, mappings: dict[int, Any]) -> Any:
    """A copy in which `change` was applied to every tensor. `mappings`: by identity, what stands for a mapping; filled
    with the copies made, so that one mapping that several arguments hold stays one.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, MutableMapping):
        if id(value) not in mappings:
            copied = mappings[id(value)] = copy.copy(value)
            for key, inner in value.items():
                copied[key] = rebuilt(inner, change, mappings)
        return mappings[id(value)]
    if isinstance(value, list):
        return [rebuilt(inner, change, mappings) for inner in value]
    if isinstance(value, tuple):
        made = [rebuilt(inner, change, mappings) for inner in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value


def mappings_in(value: Any) -> Iterator[MutableMapping[Any, Any]]:
    if isinstance(value, MutableMapping):
        yield value
    if not isinstance(value, torch.Tensor):
        for inner in parts(value):
            yield from mappings_in(inner)


def same(one: Any, other: Any) -> bool:
    """Equal structure and equal tensors, bit for bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    inner, others = parts(one), parts(other)
    if inner or others:
        return len(inner) == len(others) and all(map(same, inner, others))
    return isinstance(one, MutableMapping | list | tuple) or one is other or bool(one == other)
