"""Random weights, drawn by the model class's own rule, a layer or a slice of a table at a time.

Every layer and every slice has its own seed, so that what is drawn depends on (seed, block, slice) alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from spillway.model.meta.describe import slice_rows
from spillway.model.meta.meta_model import MetaModel, StagePlan, pattern
from spillway.model.meta.on_meta import from_config
from spillway.model.source.own import OwnConfig
from spillway.model.source.tiny_copy import fewer_layers
from spillway.model.stream.dropout import mixed
from spillway.model.stream.plain_engine import aligned, mapped

if TYPE_CHECKING:
    from spillway._engine import Engine


class Scratch:
    """Memory that weights are drawn in, mapped by itself and used again for every layer and slice. In the heap each
    would leave a hole that is some bytes too small for the next: holes of hundreds of MiB were seen."""

    def __init__(self, size: int) -> None:
        self._memory = mapped(size, touch=False).view(torch.float32)
        self._used = 0

    def clear(self) -> None:
        """Nothing of it is used any more."""
        self._used = 0

    def take(self, shape: torch.Size) -> torch.Tensor:
        """Values of any kind."""
        first, self._used = self._used, self._used + aligned(shape.numel())
        return self._memory[first : first + shape.numel()].view(shape)


def draw(meta_model: MetaModel, engine: Engine, seed: int) -> None:
    """Stores random fp32 weights for every tensor of the model."""
    if isinstance(meta_model.config, OwnConfig):
        return draw_own(meta_model, meta_model.config, engine, seed)
    scratch = Scratch(work_bytes(meta_model))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        set_buffers(meta_model)
        draw_table(meta_model, meta_model.embedding, engine, 0, (seed, 0), scratch)
        number = 1
        for block, stage in enumerate(meta_model.stages, start=1):
            draw_stage(meta_model, stage, engine, number, (seed, block), scratch)
            number += len(stage.parameters)
        if not meta_model.tied:
            draw_table(meta_model, meta_model.head, engine, number, (seed, len(meta_model.stages) + 1), scratch)


def draw_head(meta_model: MetaModel, engine: Engine, seed: int) -> None:
    """Stores random fp32 weights for the head alone, those of `draw`; zeros for its bias."""
    number = 1 + sum(len(stage.parameters) for stage in meta_model.stages)
    rows, columns = meta_model.head.weight.shape
    scratch = Scratch(torch.float32.itemsize * aligned(slice_rows(rows, columns) * columns))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        draw_table(meta_model, meta_model.head, engine, number, (seed, len(meta_model.stages) + 1), scratch)
    if (bias := meta_model.head.bias) is not None:
        numbers = {id(parameter): number for number, parameter in enumerate(every_parameter(meta_model))}
        engine.store_tensor(numbers[id(bias)], 0, torch.zeros(bias.numel()))


def work_bytes(meta_model: MetaModel) -> int:
    """The most that draw() holds at once: the fp32 values of a layer, or of a slice of a table; of a module that is not
    transformers' own all of them, since its constructor draws them in an order of its own."""
    if isinstance(meta_model.config, OwnConfig):
        return torch.float32.itemsize * sum(p.numel() for p in meta_model.stored.parameters())
    layers = [sum(aligned(p.numel()) for p in [*stage.parameters, *stage.shared]) for stage in meta_model.stages]
    tables = [
        slice_rows(*table.weight.shape) * table.weight.shape[1] for table in (meta_model.embedding, meta_model.head)
    ]
    return torch.float32.itemsize * max([*layers, *map(aligned, tables)])


def draw_own(meta_model: MetaModel, config: OwnConfig, engine: Engine, seed: int) -> None:
    """Draws the weights that the constructor draws after `torch.manual_seed(seed)`."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = config.plain(torch.float32)
    parameters = dict(made.named_parameters(remove_duplicate=False))
    stored = meta_model.stored.state_dict().keys()
    for name, buffer in made.named_buffers():
        if name in stored:
            meta_model.model.get_buffer(name).copy_(buffer)
    adapters = set(meta_model.adapters.names) if meta_model.adapters else set()
    for number, parameter in enumerate(every_parameter(meta_model)):
        name = meta_model.names[id(parameter)]
        if name not in adapters:
            engine.store_tensor(number, 0, parameters[name].detach().view(-1))


def every_parameter(meta_model: MetaModel) -> list[nn.Parameter]:
    """In the order of their numbers in the engine (`describe`)."""
    inside = [parameter for stage in meta_model.stages for parameter in stage.parameters]
    return [meta_model.embedding.weight, *inside, *([] if meta_model.tied else [meta_model.head.weight])]


def set_buffers(meta_model: MetaModel) -> None:
    """Buffers that checkpoints hold, as the class's constructor makes them: those of a model of few layers."""
    model = meta_model.model
    saved = {name for name, _ in model.named_buffers()} & model.state_dict().keys()
    if not saved:
        return
    assert not isinstance(meta_model.config, OwnConfig)
    small = fewer_layers(meta_model.config, 1, vocab_size=64)
    made = {pattern(name): buffer for name, buffer in from_config(small, meta_model.dtype).named_buffers()}
    for name in saved:
        if pattern(name) in made:
            model.get_buffer(name).copy_(made[pattern(name)])


def draw_stage(
    meta_model: MetaModel, stage: StagePlan, engine: Engine, first_tensor: int, key: tuple[int, int], scratch: Scratch
) -> None:
    """Draws the parameters of one stage; what it shares with an earlier one is drawn there."""
    everything = [*stage.parameters, *stage.shared]
    scratch.clear()
    drawn = [nn.Parameter(scratch.take(p.shape).zero_(), requires_grad=False) for p in everything]
    meta_model.attach(everything, drawn)
    torch.default_generator.manual_seed(mixed(*key, 0))
    for module in modules_of(meta_model, stage):
        meta_model.model._init_weights(module)
    for number, parameter in enumerate(stage.parameters, start=first_tensor):
        owner, name = meta_model.places[id(parameter)][0]
        engine.store_tensor(number, 0, owner._parameters[name].detach().view(-1))  # type: ignore[union-attr]
    meta_model.attach(everything, everything)


def modules_of(meta_model: MetaModel, stage: StagePlan) -> list[nn.Module]:
    """The layer's modules, inner ones first as the library has it, and those that own the stage's other parameters."""
    modules = [] if stage.layer is None else children_first(meta_model.layers[stage.layer])
    known = {id(module) for module in modules} | {id(meta_model.head), id(meta_model.embedding)}
    for parameter in stage.parameters:
        for owner, _ in meta_model.places[id(parameter)]:
            if id(owner) not in known:
                known.add(id(owner))
                modules.append(owner)
    return modules


def draw_table(
    meta_model: MetaModel,
    table: nn.Embedding | nn.Linear,
    engine: Engine,
    number: int,
    key: tuple[int, int],
    scratch: Scratch,
) -> None:
    """Draws an embedding's or a head's matrix in slices of rows."""
    meta = table.weight
    rows, columns = meta.shape
    height = slice_rows(rows, columns)
    padding = getattr(table, "padding_idx", None)
    for place, first in enumerate(range(0, rows, height)):
        count = min(height, rows - first)
        scratch.clear()
        table.weight = nn.Parameter(scratch.take(torch.Size((count, columns))), requires_grad=False)
        if padding is not None:
            table.padding_idx = padding - first if first <= padding < first + count else None
        torch.default_generator.manual_seed(mixed(*key, place))
        meta_model.model._init_weights(table)
        engine.store_tensor(number, first * columns, table.weight.detach().view(-1))
    table.weight = meta
    if padding is not None:
        table.padding_idx = padding


def children_first(module: nn.Module) -> list[nn.Module]:
    """The library initialises inner modules before outer ones."""
    modules = [inner for child in module.children() for inner in children_first(child)]
    return [*modules, module]
