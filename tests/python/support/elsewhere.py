"""Tensors with values on a device that is not there: an operation on them and on tensors of the host is an error, as on
a GPU. Unlike torch's `meta` device it answers what code asks of values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_structure, tree_unflatten

from spillway.machine.place import Place

DEVICE = torch.device("lazy", 0)
CROSSING = {"aten::_to_copy", "aten::copy_"}  # the two that bring bytes from one memory to the other
INDEXING = {"aten::index", "aten::index_put_"}  # which take places of the host, too
PLACE = Place(DEVICE)


class There(torch.Tensor):
    """A tensor that says to lie there; its values lie in `values`."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> There:
        made: There = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )
        made.values = values
        return made

    def tolist(self) -> Any:
        return self.values.tolist()

    def data_ptr(self) -> int:
        return self.values.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.values.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with TwoMemories():
            return func(*args, **(kwargs or {}))


class Numbers(TorchFunctionMode):
    """torch.tensor() comes to no dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func is torch.tensor and (device := options.pop("device", None)) is not None:
            numbers = [each.values.item() if isinstance(each, There) else each for each in tree_leaves(args[0])]
            return torch.tensor(tree_unflatten(numbers, tree_structure(args[0])), **options).to(device)
        return func(*args, **(kwargs or {}))


@contextmanager
def two_memories() -> Iterator[None]:
    """Inside, tensors can be asked for there."""
    with TwoMemories(), Numbers():
        yield


class TwoMemories(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, options = tree_leaves((args, kwargs)), dict(kwargs or {})
        there = [each for each in given if isinstance(each, There)]
        here = [each for each in given if isinstance(each, torch.Tensor) and not isinstance(each, There) and each.dim()]
        name, asked = func._schema.name, options.get("device")
        if name in INDEXING and isinstance(given[0], There):
            here = []
        assert not there or not here or name in CROSSING, f"{name} of tensors of two memories"
        goes = bool(there) if asked is None else torch.device(asked).type == DEVICE.type
        if name == "aten::copy_":
            goes = isinstance(given[0], There)
        if asked is not None and torch.device(asked).type == DEVICE.type:
            options["device"] = torch.device("cpu")
        known = {id(each.values): each for each in there}

        def take(value: Any) -> Any:
            return value.values if isinstance(value, There) else value

        def give(value: Any) -> Any:
            if not goes or not isinstance(value, torch.Tensor):
                return value
            return known[id(value)] if id(value) in known else There(value)

        return tree_map(give, func(*tree_map(take, args), **tree_map(take, options)))
