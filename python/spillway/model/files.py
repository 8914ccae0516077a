"""Names and forms of tensors in checkpoints, where they are not the model's own, and tensors that the engine has not.

The library converts many checkpoints while it loads them (experts apart in files, fused in modules; older names), and
back when it saves. Its conversions are asked for group by group (the tensors that become one), so that no more than one
group is in memory; what only has another name is read and written by the engine under that name. What a checkpoint
holds besides what is trained goes from file to file in pieces.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spillway.base.files import new_file
from spillway.errors import InputError
from spillway.model import library
from spillway.model.describe import stored_keys, stored_names
from spillway.model.own import OwnModel
from spillway.model.source import first_line

if TYPE_CHECKING:
    from spillway._engine import Engine
    from spillway.model.meta_model import MetaModel

WEIGHTS = ".engine-weights"  # under a checkpoint while it is written or read: tensors as the engine names them
TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64",
         torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}  # fmt: skip
BY_NAME = {name: dtype for dtype, name in TYPES.items()}
PIECE = 1 << 24  # elements in memory at a time
MAX_SHARD = 5 * 10**9  # bytes of a safetensors file
OTHERS = "others"  # base name, until they are counted, of files with what the engine has not
INDEX = "model.safetensors.index.json"

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

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        """All of it, flat, a piece at a time."""
        meta = self.meta(name)
        for first in range(0, meta.numel(), PIECE):
            count = min(PIECE, meta.numel() - first)
            values = torch.empty(count * meta.element_size(), dtype=torch.uint8)
            self._reader.read(name, values.numpy(), first)
            yield values.view(meta.dtype)

    def meta(self, name: str) -> torch.Tensor:
        kind, shape = self._heads[name]
        if kind not in BY_NAME:
            raise InputError(f"{self._place}: tensor {name} is of type {kind}, which cannot be converted here")
        return torch.empty(shape, dtype=BY_NAME[kind], device="meta")


@dataclass(frozen=True)
class Unit:
    """Tensors that are made, and written to files, together."""

    listed: list[tuple[str, torch.Tensor]]  # names, and on meta types and shapes
    made: Callable[[], Iterator[Iterator[torch.Tensor]]]  # of each of them its elements, flat, in pieces


@dataclass
class Group:
    """Tensors of one side that become tensors of the other together."""

    transform: Any = None  # the library's; None: as they are
    members: list[tuple[str, str]] = field(default_factory=list)  # name, pattern that it matched
    target: str = ""  # the first one


class Bound:
    """A model whose parameters may be views of the engine's memory, for code that asks for them by name."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def get_parameter(self, name: str) -> torch.Tensor:
        owner, _, own = name.rpartition(".")
        return self._model.get_submodule(owner)._parameters[own]  # type: ignore[no-any-return]


class Names:
    """What the tensors of one model are called in files, both ways."""

    def __init__(self, meta_model: MetaModel) -> None:
        self._model = model = meta_model.stored
        self._own = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        buffers = set(model.state_dict().keys()) - self._own  # saved, and no parameters
        apart = {name for name in buffers if meta_model.is_apart(name)}
        self.buffers = buffers - apart
        self.towers = meta_model.carried_names | apart  # of other modalities: carried along

    def know(self, keys: set[str]) -> None:
        """The checkpoint that the model began with has tensors of these names: a save is to have its names."""
        if keys and getattr(self._model, "_weight_conversions", None) is None:
            self.loading(keys)

    def renamed(self, names: set[str]) -> dict[str, str] | None:
        """What the model's tensors `names` are called in files; None where their form is another, too."""
        groups = self.saving(names).values()
        if any(group.transform for group in groups):
            return None
        return {group.members[0][0]: group.target for group in groups}

    def stored(self, names: set[str], keys: set[str]) -> dict[str, str] | None:
        """What the model's tensors `names` are called in a file that holds `keys`. None where their form is another,
        or one is missing."""
        groups = [group for group in self.loading(keys) if group.target in names]
        if any(group.transform for group in groups) or {group.target for group in groups} != names:
            return None
        return {group.target: group.members[0][0] for group in groups}

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
        made = transform.convert(group.target, model=Bound(self._model), config=self._model.config)
        found = {name: value[0] if isinstance(value, list) else value for name, value in made.items()}
        return {library.renamed(n, self._renamings): v for n, v in found.items()} if saving else found

    def others(self, stored: Stored) -> Iterator[Unit]:
        """What a checkpoint holds besides what is trained, as a save is to hold it: of other modalities, and what no
        model has a place for. What has its name in the file already is copied as it is."""
        groups = {
            name: group
            for group in self.loading(stored.names())
            if group.target in self.towers
            for name in self.made_of(group, stored)
        }

        def made(read: Callable[[str], torch.Tensor]) -> Callable[[str], torch.Tensor]:
            return lambda name: self.converted(groups[name], read, saving=False)[name]

        for group in self.saving(set(groups)).values():
            listed = list(self.converted(group, made(stored.meta), saving=True).items())
            known = {name for name, _ in listed} <= stored.names()
            for name, _ in listed if known else ():
                yield copied(stored, name, name)
            plain = not group.transform and not groups[group.members[0][0]].transform
            if not known and plain:
                yield copied(stored, groups[group.members[0][0]].members[0][0], group.target)
            elif not known:
                yield self.unit(group, listed, made(stored.tensor))
        for name in sorted(self.passed_over(stored.names())):
            yield copied(stored, name, name)

    def unit(self, group: Group, listed: list[tuple[str, torch.Tensor]], read: Callable[[str], torch.Tensor]) -> Unit:
        def made() -> Iterator[Iterator[torch.Tensor]]:
            tensors = self.converted(group, read, saving=True)
            yield from (pieces(tensors[name]) for name, _ in listed)

        return Unit(listed, made)

    def made_of(self, group: Group, stored: Stored) -> list[str]:
        """Names of the model's tensors that a group of a file's becomes: several where one tensor holds them."""
        if group.transform is None or len(group.transform.target_patterns) == 1:
            return [group.target]
        return list(self.converted(group, stored.meta, saving=False))

    def missing(self, stored: Stored) -> str | None:
        """A parameter of another modality that files lack under all of its names."""
        groups = [group for group in self.loading(stored.names()) if group.target in self.towers]
        found = {name for group in groups for name in self.made_of(group, stored)}
        several: dict[int, list[str]] = {}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            if name in self.towers:
                several.setdefault(id(parameter), []).append(name)
        return next((names[0] for names in several.values() if not found & set(names)), None)

    def passed_over(self, names: set[str]) -> set[str]:
        """Tensors of a file that the library passes over when it loads, and that would be lost."""
        patterns = [*(self._model._keys_to_ignore_on_load_unexpected or [])]
        kept = [pattern for pattern in patterns if "inv_freq" not in pattern and "bias" not in pattern]
        used = {name for group in self.loading(names) for name, _ in group.members}
        return {name for name in names - used if any(re.search(pattern, name) for pattern in kept)}

    def _conversions(self, legacy: bool) -> list[Any]:
        return [] if isinstance(self._model, OwnModel) else library.conversions(self._model, legacy)


def copied(stored: Stored, name: str, to: str) -> Unit:
    return Unit([(to, stored.meta(name))], lambda: iter([stored.pieces(name)]))


def held(name: str, tensor: torch.Tensor) -> Unit:
    return Unit([(name, tensor.to("meta"))], lambda: iter([pieces(tensor)]))


def pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    flat = tensor.detach().contiguous().view(-1)
    for first in range(0, flat.numel(), PIECE):
        yield flat[first : first + PIECE]


def load(meta_model: MetaModel, description: dict[str, Any], engine: Engine, source: Path) -> None:
    """Every tensor of the description, and the model's saved buffers, from a checkpoint in the library's form."""
    names, stored = Names(meta_model), Stored(source)
    numbers = base_numbers(meta_model, description)
    missing = set(numbers) | names.buffers
    for group in names.loading(stored.names()):
        if group.target in names.towers:
            continue
        if not group.transform and group.target in numbers:
            missing.discard(group.target)
            number, shape = numbers[group.target]
            check_shape(source, group.target, stored.meta(group.members[0][0]), shape)
            store(engine, number, stored.pieces(group.members[0][0]))
            continue
        for name, tensor in converted(names, group, stored, source).items():
            missing.discard(name)
            if name in names.buffers:
                set_buffer(meta_model, name, tensor)
            elif name in numbers:
                number, shape = numbers[name]
                check_shape(source, name, tensor, shape)
                store(engine, number, pieces(tensor))
    if missing:
        first = next(name for name in [*numbers, *sorted(names.buffers)] if name in missing)
        raise InputError(f"{source}: tensor {first} is missing")


def check_shape(source: Path, name: str, tensor: torch.Tensor, shape: list[int]) -> None:
    if list(tensor.shape) != shape:
        raise InputError(f"{source}: tensor {name} has shape {list(tensor.shape)}, the model has {shape}")


def converted(names: Names, group: Group, stored: Stored, source: Path) -> Tensors:
    try:
        return names.converted(group, stored.tensor, saving=False)
    except Exception as error:  # shapes that do not fit together, experts that are missing
        raise InputError(f"{source}: {group.target} cannot be made of its tensors: {first_line(error)}") from error


def store(engine: Engine, number: int, parts: Iterator[torch.Tensor]) -> None:
    first = 0
    for part in parts:
        engine.store_tensor(number, first, part.float())
        first += part.numel()


def saved_buffers(meta_model: MetaModel, names: Names) -> list[Unit]:
    types, values = meta_model.kept_types, meta_model.model.state_dict()
    return [held(name, values[name].to(types.get(name, values[name].dtype))) for name in sorted(names.buffers)]


def save_converted(
    meta_model: MetaModel, write: Callable[[str], None], directory: Path, max_shard: int, carry_from: Path | None
) -> None:
    """As `save_pretrained` does. `write` puts the engine's tensors into a directory; they are converted from there.

    `carry_from`: the checkpoint that the run began with, for tensors that the engine has not.
    """
    temporary = directory / WEIGHTS
    temporary.mkdir()
    try:
        write(str(temporary))
        names, stored = Names(meta_model), Stored(temporary)
        buffers = {unit.listed[0][0]: unit for unit in saved_buffers(meta_model, names)}
        units = []
        for group in names.saving(stored.names() | set(buffers)).values():
            own = group.members[0][0]
            if group.transform is not None:
                listed = list(names.converted(group, stored.meta, saving=True).items())
                units.append(names.unit(group, listed, stored.tensor))
            elif own in buffers:
                units.append(Unit([(group.target, buffers[own].listed[0][1])], buffers[own].made))
            else:
                units.append(copied(stored, own, group.target))
        units += names.others(Stored(carry_from)) if carry_from is not None else []
        write_files(directory, "model", max_shard, units)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_files(directory: Path, base: str, max_shard: int, units: list[Unit]) -> None:
    from spillway._engine import SafetensorsWriter

    listed = [each for unit in units for each in unit.listed]
    heads = [(name, TYPES[tensor.dtype], list(tensor.shape)) for name, tensor in listed]
    writer = SafetensorsWriter(str(directory), base, heads, max_shard)
    parts = (each for unit in units for each in unit.made())
    for number, several in enumerate(parts):
        first = 0
        for part in several:
            writer.write(number, first, part.view(torch.uint8).numpy())
            first += part.numel()
    writer.finish()


def add_files(directory: Path, max_shard: int, units: list[Unit]) -> None:
    """Beside the model that `directory` holds, further tensors in files of their own."""
    write_files(directory, OTHERS, max_shard, units)
    files = [path for base in ("model", OTHERS) for path in sorted(directory.glob(f"{base}*.safetensors"))]
    for index in directory.glob("*.index.json"):
        index.unlink()
    places: dict[str, str] = {}
    size = parameters = 0
    for number, path in enumerate(files, start=1):
        name, found = f"model-{number:05d}-of-{len(files):05d}.safetensors", Stored(path)
        metas = {each: found.meta(each) for each in found.names()}
        places |= dict.fromkeys(metas, name)
        size += sum(meta.numel() * meta.element_size() for meta in metas.values())
        parameters += sum(meta.numel() for meta in metas.values())
        os.rename(path, directory / name)
    total = {"total_parameters": parameters, "total_size": size}
    content = {"metadata": total, "weight_map": dict(sorted(places.items()))}
    with open(new_file(directory / INDEX), "w", encoding="utf-8") as stream:
        stream.write(json.dumps(content, indent=2) + "\n")


def to_engine(meta_model: MetaModel, description: dict[str, Any], checkpoint: Path, target: Path) -> None:
    """A checkpoint's tensors as the engine names them, in a directory of their own; buffers into the model."""
    names, stored = Names(meta_model), Stored(checkpoint)
    numbers = tensor_numbers(description)
    units = []
    for group in names.loading(stored.names()):
        if group.target in names.towers:
            continue
        if not group.transform and group.target in numbers:
            units.append(copied(stored, group.members[0][0], group.target))
            continue
        made = names.converted(group, stored.meta, saving=False)
        listed = [(name, tensor) for name, tensor in made.items() if name in numbers]
        units.append(Unit(listed, partial(engine_tensors, meta_model, names, group, stored, numbers)))
    write_files(target, "model", 1 << 62, units)


def engine_tensors(
    meta_model: MetaModel, names: Names, group: Group, stored: Stored, numbers: dict[str, Any]
) -> Iterator[Iterator[torch.Tensor]]:
    """Those of a group; buffers go into the model."""
    for name, tensor in names.converted(group, stored.tensor, saving=False).items():
        if name in names.buffers:
            set_buffer(meta_model, name, tensor)
        elif name in numbers:
            yield pieces(tensor)


def set_buffer(meta_model: MetaModel, name: str, tensor: torch.Tensor) -> None:
    owner, _, own = name.rpartition(".")
    held = meta_model.model.get_submodule(owner)._buffers
    before = held[own]
    assert before is not None
    if before.shape != tensor.shape:
        raise InputError(f"buffer {name} has shape {list(tensor.shape)}, the model has {list(before.shape)}")
    held[own] = tensor.to(before.dtype, copy=True)


def tensor_numbers(description: dict[str, Any]) -> dict[str, tuple[int, list[int]]]:
    tensors = [tensor for block in description["blocks"] for tensor in block["tensors"]]
    return {tensor["name"]: (number, tensor["shape"]) for number, tensor in enumerate(tensors)}


def base_numbers(meta_model: MetaModel, description: dict[str, Any]) -> dict[str, tuple[int, list[int]]]:
    """Those of the model itself, adapters left out."""
    own = set(meta_model.adapters.names) if meta_model.adapters else set()
    return {name: found for name, found in tensor_numbers(description).items() if name not in own}


def load_weights(meta_model: MetaModel, description: dict[str, Any], engine: Engine, source: Path) -> None:
    """From a checkpoint, by the engine itself where nothing is converted. InputError where the checkpoint lacks what
    is carried along, too."""
    stored = stored_names(description, source, meta_model.model.base_model_prefix)
    absent = meta_model.adapters.absent(description, adapters=False) if meta_model.adapters is not None else {}
    stored |= absent
    keys, names = stored_keys(source), Names(meta_model)
    if keys and names.towers and (lost := names.missing(Stored(source))):
        raise InputError(f"{source}: tensor {lost} is missing; it is not trained, but every checkpoint is to hold it")
    if plain(meta_model, description) and set(filter(None, stored.values())) <= keys:
        engine.load_weights(str(source), stored)
    elif not keys:  # unreadable: the engine's reader says why
        engine.load_weights(str(source), stored)
    elif (found := names.stored(set(base_numbers(meta_model, description)), keys)) is not None:
        engine.load_weights(str(source), found | absent)
        load_buffers(meta_model, source)
    else:
        load(meta_model, description, engine, source)


def save_weights(
    meta_model: MetaModel, description: dict[str, Any], engine: Engine, directory: Path, max_shard: int, source: Path
) -> None:
    """To a directory that exists. `source`: the checkpoint that the run began with, if there is one."""
    names, keys, own = of_save(meta_model, description, source)
    if own is None or in_one_file(meta_model, names, keys, max_shard):
        return save_converted(
            meta_model,
            lambda held: engine.save_weights(held, max_shard),
            directory,
            max_shard,
            source if keys else None,
        )
    others = saved_buffers(meta_model, names)
    if keys and (names.towers or names.passed_over(keys)):
        others += names.others(Stored(source))
    differing = {name: to for name, to in own.items() if name != to}
    engine.save_weights(str(directory), max_shard, *([differing] if differing else []))
    if others:
        add_files(directory, max_shard, others)


def of_save(
    meta_model: MetaModel, description: dict[str, Any], source: Path
) -> tuple[Names, set[str], dict[str, str] | None]:
    """What a save needs to know: names, those in the checkpoint that the run began with, and what the engine's tensors
    are called in files; None where their form is another, too."""
    names, keys = Names(meta_model), stored_keys(source)
    names.know(keys)  # a run that went on has not read it; older names are kept
    return names, keys, names.renamed(set(base_numbers(meta_model, description)))


def in_one_file(meta_model: MetaModel, names: Names, keys: set[str], max_shard: int) -> bool:
    """Whether a save is small enough for one file, which holds what the engine has not, too."""
    if not names.buffers and not names.towers and not names.passed_over(keys):
        return False
    return sum(p.numel() * p.element_size() for p in meta_model.stored.parameters()) < max_shard


def load_state(
    meta_model: MetaModel, description: dict[str, Any], engine: Engine, state: Path, checkpoint: Path, steps: int
) -> str:
    """What `save_weights` and `Engine.save_state` wrote; see Engine.load_state."""
    keys = stored_keys(checkpoint)
    if not keys or (plain(meta_model, description) and set(tensor_numbers(description)) <= keys):
        return engine.load_state(str(state), str(checkpoint), steps)
    found = Names(meta_model).stored(set(tensor_numbers(description)), keys)
    if found is not None:
        load_buffers(meta_model, checkpoint)
        return engine.load_state(str(state), str(checkpoint), steps, found)
    with tempfile.TemporaryDirectory(prefix=WEIGHTS, dir=state) as temporary:
        to_engine(meta_model, description, checkpoint, Path(temporary))
        return engine.load_state(str(state), temporary, steps)


def load_buffers(meta_model: MetaModel, source: Path) -> None:
    """The model's saved buffers, which no optimizer updates, as the checkpoint has them."""
    names = Names(meta_model)
    if not names.buffers or not stored_keys(source):
        return
    stored = Stored(source)
    for group in names.loading(stored.names()):
        if group.target in names.buffers:
            for name, tensor in converted(names, group, stored, source).items():
                set_buffer(meta_model, name, tensor)


def plain(meta_model: MetaModel, description: dict[str, Any]) -> bool:
    """Whether the engine's tensors are those of files, by their names, and files hold no others."""
    names = Names(meta_model)
    own = names.renamed(set(base_numbers(meta_model, description)))
    return own is not None and not names.buffers and all(name == to for name, to in own.items())


def converts(meta_model: MetaModel, description: dict[str, Any], source: Path, max_shard: int) -> bool:
    """Whether the engine's tensors are written twice in a save: they have another form in files, or are so few that one
    file holds them and others."""
    names, keys, own = of_save(meta_model, description, source)
    return own is None or in_one_file(meta_model, names, keys, max_shard)


def carried_bytes(meta_model: MetaModel) -> int:
    """Of what a save holds besides what is trained, in about as many bytes an element as that."""
    return sum(parameter.numel() for parameter in meta_model.carried) * meta_model.kept.itemsize


def checkpoint_names(meta_model: MetaModel, source: Path) -> dict[str, list[str]]:
    """Of the parameters of a multimodal model the names that the tensors have in its checkpoint, which they are made
    of; where it is not there yet, in one that the library writes."""
    names, keys = Names(meta_model), stored_keys(source)
    if keys:
        return {group.target: [name for name, _ in group.members] for group in names.loading(keys)}
    own = {name for name, _ in meta_model.stored.named_parameters()}
    found: dict[str, list[str]] = {}
    for group in names.saving(own).values():
        for name, _ in group.members:
            found.setdefault(name, []).append(group.target)
    return found
