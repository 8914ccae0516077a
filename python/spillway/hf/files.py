"""Names and forms of tensors in checkpoints, where they are not the model's own.

The library converts many checkpoints while it loads them (experts apart in files, fused in modules; older names), and
back when it saves. Its conversions are asked for group by group (the tensors that become one), so that no more than one
group is in memory.
"""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spillway.errors import InputError
from spillway.hf import library
from spillway.hf.describe import stored_keys, stored_names
from spillway.hf.own import OwnModel
from spillway.hf.source import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from spillway._engine import Engine
    from spillway.hf.skeleton import Skeleton

WEIGHTS = ".engine-weights"  # under a checkpoint while it is written or read: tensors as the engine names them
TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64",
         torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}  # fmt: skip
BY_NAME = {name: dtype for dtype, name in TYPES.items()}
PIECE = 1 << 24  # elements widened at a time

Tensors = dict[str, torch.Tensor]


class Stored:
    """The tensors of a checkpoint's directory, or of one file, each read when it is asked for. By the engine's reader,
    which maps no file: one that is cut short meanwhile is an error and not the end of the process."""

    def __init__(self, place: Path) -> None:
        from spillway._engine import SafetensorsReader

        self._place = place
        try:
            self._reader = SafetensorsReader(str(place))
        except (ValueError, OSError) as error:
            raise InputError(str(error)) from error
        self._heads = self._reader.tensors()

    def names(self) -> set[str]:
        return set(self._heads)

    def tensor(self, name: str) -> torch.Tensor:
        meta = self.meta(name)
        values = torch.empty(meta.numel() * meta.element_size(), dtype=torch.uint8)
        self._reader.read(name, values.numpy())
        return values.view(meta.dtype).view(meta.shape)

    def meta(self, name: str) -> torch.Tensor:
        kind, shape = self._heads[name]
        if kind not in BY_NAME:
            raise InputError(f"{self._place}: tensor {name} is of type {kind}, which cannot be converted here")
        return torch.empty(shape, dtype=BY_NAME[kind], device="meta")


@dataclass
class Group:
    """Tensors of one side that become tensors of the other together."""

    transform: Any = None  # the library's; None: as they are
    members: list[tuple[str, str]] = field(default_factory=list)  # name, pattern that it matched
    target: str = ""  # the first one


class Names:
    """What the tensors of one model are called in files, both ways."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._own = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self.buffers = set(model.state_dict().keys()) - self._own  # saved, and no parameters

    def as_they_are(self, names: set[str]) -> bool:
        """Whether the tensors of a file (or those the model would save) need nothing but what the engine does."""
        groups = self.saving(names).values()
        return not self.buffers and all(not g.transform and g.target == g.members[0][0] for g in groups)

    def loading(self, names: set[str]) -> list[Group]:
        """Groups of a file's tensors by the tensor of the model that they become; those it lacks are left out."""
        mapping = self._conversions(legacy=True)
        renamings, converters = library.parted(mapping)
        by_pattern = {pattern: entry for entry in converters for pattern in entry.source_patterns}
        held, prefix = self._model.state_dict(), self._model.base_model_prefix
        groups: dict[str, Group] = {}
        for name in sorted(names, key=library.natural_order):
            target, pattern = library.loaded_name(name, renamings, converters, prefix, held)
            if target not in held and name in held:
                target, pattern = library.loaded_name(name, [], [], prefix, held)
            if target in held:
                group = groups.setdefault(target, Group(by_pattern.get(pattern or ""), [], target))
                group.members.append((name, pattern or name))
        self._model._weight_conversions = [entry for entry in mapping if entry.was_used()]
        return list(groups.values())

    def saving(self, names: set[str]) -> dict[str, Group]:
        """Groups of the model's tensors by the first of the tensors in files that they become."""
        used = getattr(self._model, "_weight_conversions", None)
        if used is None:
            used = library.without_prefixes(self._conversions(legacy=False))
        self._renamings, converters = library.parted(entry.reverse_transform() for entry in used[::-1])
        by_pattern = {pattern: entry for entry in converters for pattern in entry.source_patterns}
        groups: dict[str, Group] = {}
        for name in sorted(names, key=library.natural_order):
            target, pattern = library.converted_name(name, converters)
            if pattern is None:
                target = library.renamed(name, self._renamings)
            group = groups.setdefault(target, Group(by_pattern.get(pattern or ""), [], target))
            group.members.append((name, pattern or name))
        return groups

    def converted(self, group: Group, read: Callable[[str], torch.Tensor], saving: bool) -> Tensors:
        """The tensors that a group becomes."""
        if group.transform is None:
            return {group.target: read(group.members[0][0])}
        transform = copy.deepcopy(group.transform)
        for name, pattern in group.members:
            transform.add_tensor(group.target, name, pattern, read(name))
        made = transform.convert(group.target, model=self._model, config=self._model.config)
        found = {name: value[0] if isinstance(value, list) else value for name, value in made.items()}
        return {library.renamed(n, self._renamings): v for n, v in found.items()} if saving else found

    def carried(self, names: set[str]) -> set[str]:
        """Tensors of a file that the library passes over when it loads, and that would be lost."""
        patterns = [*(self._model._keys_to_ignore_on_load_unexpected or [])]
        kept = [pattern for pattern in patterns if "inv_freq" not in pattern and "bias" not in pattern]
        used = {name for group in self.loading(names) for name, _ in group.members}
        return {name for name in names - used if any(re.search(pattern, name) for pattern in kept)}

    def _conversions(self, legacy: bool) -> list[Any]:
        return [] if isinstance(self._model, OwnModel) else library.conversions(self._model, legacy)


def load(skeleton: Skeleton, description: dict[str, Any], engine: Engine, source: Path) -> None:
    """Every tensor of the description, and the model's saved buffers, from a checkpoint in the library's form."""
    names, stored = Names(skeleton.stored), Stored(source)
    numbers = base_numbers(skeleton, description)
    missing = set(numbers) | names.buffers
    for group in names.loading(stored.names()):
        for name, tensor in converted(names, group, stored, source).items():
            missing.discard(name)
            if name in names.buffers:
                set_buffer(skeleton, name, tensor)
            elif name in numbers:
                number, shape = numbers[name]
                if list(tensor.shape) != shape:
                    raise InputError(f"{source}: tensor {name} has shape {list(tensor.shape)}, the model has {shape}")
                store(engine, number, tensor)
    if missing:
        first = next(name for name in [*numbers, *sorted(names.buffers)] if name in missing)
        raise InputError(f"{source}: tensor {first} is missing")


def converted(names: Names, group: Group, stored: Stored, source: Path) -> Tensors:
    try:
        return names.converted(group, stored.tensor, saving=False)
    except Exception as error:  # shapes that do not fit together, experts that are missing
        raise InputError(f"{source}: {group.target} cannot be made of its tensors: {first_line(error)}") from error


def store(engine: Engine, number: int, tensor: torch.Tensor) -> None:
    flat = tensor.detach().contiguous().view(-1)
    for first in range(0, flat.numel(), PIECE):
        engine.store_tensor(number, first, flat[first : first + PIECE].float())


def save(
    skeleton: Skeleton, write: Callable[[str], None], directory: Path, max_shard: int, carry_from: Path | None
) -> None:
    """As `save_pretrained` does. `write` puts the engine's tensors into a directory; they are converted from there.

    `carry_from`: the checkpoint that the run began with, for tensors that no model has a place for.
    """
    held = directory / WEIGHTS
    held.mkdir()
    try:
        write(str(held))
        stored = Stored(held)
        saved, types = Names(skeleton.stored).buffers, skeleton.kept_types
        buffers = {n: t.to(types.get(n, t.dtype)) for n, t in skeleton.model.state_dict().items() if n in saved}
        rewrite(skeleton, stored, buffers, directory, max_shard, carry_from)
    finally:
        shutil.rmtree(held, ignore_errors=True)


def rewrite(
    skeleton: Skeleton, stored: Stored, buffers: Tensors, directory: Path, max_shard: int, carry_from: Path | None
) -> None:
    names = Names(skeleton.stored)
    groups = names.saving(stored.names() | set(buffers)).values()

    def read(name: str) -> torch.Tensor:
        return buffers[name] if name in buffers else stored.tensor(name)

    def meta(name: str) -> torch.Tensor:
        return buffers[name].to("meta") if name in buffers else stored.meta(name)

    listed = [(name, t) for group in groups for name, t in names.converted(group, meta, saving=True).items()]
    source = Stored(carry_from) if carry_from is not None else None
    carried = sorted(names.carried(source.names())) if source is not None else []
    listed += [(name, source.meta(name)) for name in carried if source is not None]
    write_files(directory, max_shard, listed, every(names, groups, read, source, carried))


def every(names: Names, groups: Any, read: Any, source: Stored | None, carried: list[str]) -> Iterator[torch.Tensor]:
    for group in groups:
        yield from names.converted(group, read, saving=True).values()
    for name in carried:
        assert source is not None
        yield source.tensor(name)


def write_files(
    directory: Path, max_shard: int, listed: list[tuple[str, torch.Tensor]], tensors: Iterator[torch.Tensor]
) -> None:
    from spillway._engine import SafetensorsWriter

    heads = [(name, TYPES[tensor.dtype], list(tensor.shape)) for name, tensor in listed]
    writer = SafetensorsWriter(str(directory), "model", heads, max_shard)
    for number, tensor in enumerate(tensors):
        flat = tensor.detach().contiguous().view(-1)
        for first in range(0, flat.numel(), PIECE):
            writer.write(number, first, flat[first : first + PIECE].view(torch.uint8).numpy())
    writer.finish()


def to_engine(skeleton: Skeleton, description: dict[str, Any], checkpoint: Path, target: Path) -> None:
    """A checkpoint's tensors as the engine names them, in a directory of their own; buffers into the model."""
    names, stored = Names(skeleton.stored), Stored(checkpoint)
    numbers = tensor_numbers(description)
    listed: list[tuple[str, torch.Tensor]] = []
    groups = names.loading(stored.names())
    for group in groups:
        made = names.converted(group, stored.meta, saving=False)
        listed += [(name, tensor) for name, tensor in made.items() if name in numbers]

    def wanted() -> Iterator[torch.Tensor]:
        for group in groups:
            for name, tensor in names.converted(group, stored.tensor, saving=False).items():
                if name in names.buffers:
                    set_buffer(skeleton, name, tensor)
                elif name in numbers:
                    yield tensor

    write_files(target, 1 << 62, listed, wanted())


def set_buffer(skeleton: Skeleton, name: str, tensor: torch.Tensor) -> None:
    owner, _, own = name.rpartition(".")
    held = skeleton.model.get_submodule(owner)._buffers
    before = held[own]
    assert before is not None
    if before.shape != tensor.shape:
        raise InputError(f"buffer {name} has shape {list(tensor.shape)}, the model has {list(before.shape)}")
    held[own] = tensor.to(before.dtype, copy=True)


def tensor_numbers(description: dict[str, Any]) -> dict[str, tuple[int, list[int]]]:
    tensors = [tensor for block in description["blocks"] for tensor in block["tensors"]]
    return {tensor["name"]: (number, tensor["shape"]) for number, tensor in enumerate(tensors)}


def base_numbers(skeleton: Skeleton, description: dict[str, Any]) -> dict[str, tuple[int, list[int]]]:
    """Those of the model itself, adapters left out."""
    own = set(skeleton.adapters.names) if skeleton.adapters else set()
    return {name: found for name, found in tensor_numbers(description).items() if name not in own}


def load_weights(skeleton: Skeleton, description: dict[str, Any], engine: Engine, source: Path) -> None:
    """From a checkpoint, by the engine itself where nothing is converted."""
    stored = stored_names(description, source, skeleton.model.base_model_prefix)
    if skeleton.adapters is not None:
        stored |= skeleton.adapters.absent(description, adapters=False)
    if plain(skeleton, description) and set(filter(None, stored.values())) <= stored_keys(source):
        engine.load_weights(str(source), stored)
    elif not stored_keys(source):  # unreadable: the engine's reader says why
        engine.load_weights(str(source), stored)
    else:
        load(skeleton, description, engine, source)


def save_weights(
    skeleton: Skeleton, description: dict[str, Any], engine: Engine, directory: Path, max_shard: int, source: Path
) -> None:
    """To a directory that exists. `source`: the checkpoint that the run began with, if there is one."""
    began = source if stored_keys(source) else None
    if began is not None and getattr(skeleton.stored, "_weight_conversions", None) is None:
        Names(skeleton.stored).loading(stored_keys(began))  # a run that went on has not read it; older names are kept
    if plain(skeleton, description) and (began is None or not Names(skeleton.stored).carried(stored_keys(began))):
        engine.save_weights(str(directory), max_shard)
    else:
        save(skeleton, lambda held: engine.save_weights(held, max_shard), directory, max_shard, began)


def load_state(
    skeleton: Skeleton, description: dict[str, Any], engine: Engine, state: Path, checkpoint: Path, steps: int
) -> str:
    """What `save_weights` and `Engine.save_state` wrote; see Engine.load_state."""
    keys = stored_keys(checkpoint)
    if not keys or (plain(skeleton, description) and set(tensor_numbers(description)) <= keys):
        return engine.load_state(str(state), str(checkpoint), steps)
    with tempfile.TemporaryDirectory(prefix=WEIGHTS, dir=state) as held:
        to_engine(skeleton, description, checkpoint, Path(held))
        return engine.load_state(str(state), held, steps)


def load_buffers(skeleton: Skeleton, source: Path) -> None:
    """The model's saved buffers, which no optimizer updates, as the checkpoint has them."""
    names = Names(skeleton.stored)
    if not names.buffers or not stored_keys(source):
        return
    stored = Stored(source)
    for group in names.loading(stored.names()):
        if group.target in names.buffers:
            for name, tensor in converted(names, group, stored, source).items():
                set_buffer(skeleton, name, tensor)


def plain(skeleton: Skeleton, description: dict[str, Any]) -> bool:
    return Names(skeleton.stored).as_they_are(set(base_numbers(skeleton, description)))
