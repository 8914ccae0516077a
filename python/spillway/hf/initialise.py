"""Random weights, drawn by the model class's own rule, a layer or a slice of a table at a time.

Every layer and every slice has its own seed, so that what is drawn depends on (seed, block, slice) alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from spillway.hf.describe import slice_rows
from spillway.hf.skeleton import Skeleton
from spillway.hf.stream import mixed

if TYPE_CHECKING:
    from spillway._engine import Engine


def draw(skeleton: Skeleton, engine: Engine, seed: int) -> None:
    """Stores random fp32 weights for every tensor of the model."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        draw_table(skeleton, skeleton.embedding, engine, 0, (seed, 0))
        number = 1
        for block, module in enumerate(skeleton.stack, start=1):
            number += draw_layer(skeleton, module, engine, number, (seed, block))
        if not skeleton.tied:
            draw_table(skeleton, skeleton.head, engine, number, (seed, len(skeleton.stack) + 1))


def draw_layer(skeleton: Skeleton, layer: nn.Module, engine: Engine, first_tensor: int, key: tuple[int, int]) -> int:
    """Draws one layer; returns the number of its tensors."""
    names = [name for name, _ in layer.named_parameters()]
    meta = {name: layer.get_parameter(name) for name in names}
    for name, parameter in meta.items():
        hang(layer, name, nn.Parameter(torch.empty(parameter.shape), requires_grad=False))
    torch.default_generator.manual_seed(mixed(*key, 0))
    for module in children_first(layer):
        skeleton.model._init_weights(module)
    for number, name in enumerate(names, start=first_tensor):
        engine.store_tensor(number, 0, layer.get_parameter(name).detach().view(-1))
        hang(layer, name, meta[name])
    return len(names)


def draw_table(
    skeleton: Skeleton, table: nn.Embedding | nn.Linear, engine: Engine, number: int, key: tuple[int, int]
) -> None:
    """Draws an embedding's or a head's matrix in slices of rows."""
    meta = table.weight
    rows, columns = meta.shape
    height = slice_rows(rows, columns)
    padding = getattr(table, "padding_idx", None)
    for place, first in enumerate(range(0, rows, height)):
        count = min(height, rows - first)
        table.weight = nn.Parameter(torch.empty(count, columns), requires_grad=False)
        if padding is not None:
            table.padding_idx = padding - first if first <= padding < first + count else None
        torch.default_generator.manual_seed(mixed(*key, place))
        skeleton.model._init_weights(table)
        engine.store_tensor(number, first * columns, table.weight.detach().view(-1))
    table.weight = meta
    if padding is not None:
        table.padding_idx = padding


def hang(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    owner, _, own = name.rpartition(".")
    module.get_submodule(owner)._parameters[own] = parameter


def children_first(module: nn.Module) -> list[nn.Module]:
    """The library initialises inner modules before outer ones."""
    found = [inner for child in module.children() for inner in children_first(child)]
    return [*found, module]
