"""Names and forms of tensors in checkpoints, where they are not the model's own, and tensors that the engine has not.

The library converts many checkpoints while it loads them (experts apart in files, fused in modules; older names), and
back when it saves. Its conversions are asked for group by group (the tensors that become one), so that no more than one
group is in memory; what only has another name is read and written by the engine under that name. What a checkpoint
holds besides what is trained goes from file to file in pieces.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spillway._engine import Description, Form
from spillway.base.files import new_file, sheet_of
from spillway.errors import InputError, first_line
from spillway.model.checkpoint import ties
from spillway.model.checkpoint.tensor_names import Group, Names
from spillway.model.meta.describe import stored_keys, stored_names
from spillway.model.source import coded
from spillway.model.source.library import natural_order
from spillway.model.source.source import is_classifier
from spillway.model.source.tensor_files import Stored, Tensors, Unit, copied, held, pieces, write_files

if TYPE_CHECKING:
    from spillway._engine import Engine
    from spillway.model.meta.meta_model import MetaModel

WEIGHTS = ".engine-weights"  # under a checkpoint while it is written or read: tensors as the engine names them
MAX_SHARD = 5 * 10**9  # bytes of a safetensors file
# Ends of names that quantised weights have, by the tools that write them.
CODES = (".qweight", ".qzeros", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".absmax", ".weight.absmax",
         ".scales", "_scales", "_blocks")  # fmt: skip
PLAIN = {torch.float32, torch.bfloat16, torch.float16, torch.float64}  # types of weights that are no codes
OTHERS = "others"  # base name, until they are counted, of files with what the engine has not
INDEX = "model.safetensors.index.json"


def load(meta_model: MetaModel, description: Description, engine: Engine, source: Path) -> None:
    """Every tensor of the description, and the model's saved buffers, from a checkpoint in the library's form."""
    names, stored = Names(meta_model), Stored(source, coded.choose_dtype(source, meta_model.kept))
    numbers, measured = base_numbers(meta_model, description), measured_names(description)
    missing = (set(numbers) | names.buffers) - set(list_drawn(meta_model, source))
    for group in names.loading(stored.names()):
        if group.target in names.towers or group.target in names.aliases:
            continue
        if not group.transform and group.target in numbers:
            missing.discard(group.target)
            number, shape = numbers[group.target]
            check_tensor(source, group.target, stored.meta(group.members[0][0]), shape)
            member = group.members[0][0]
            if group.target in measured:
                measure(engine, number, stored.pieces(member))
            store(engine, source, number, stored.pieces(member))
            continue
        for name, tensor in converted(names, group, stored, source).items():
            missing.discard(name)
            if name in names.buffers:
                set_buffer(meta_model, name, tensor)
            elif name in numbers:
                number, shape = numbers[name]
                check_tensor(source, name, tensor, shape)
                if name in measured:
                    measure(engine, number, pieces(tensor))
                store(engine, source, number, pieces(tensor))
    if missing:
        first = next(name for name in [*numbers, *sorted(names.buffers)] if name in missing)
        codes = next((name for name in sorted(stored.names()) if name.endswith(CODES)), None)
        hint = f"; there is {codes}, as of quantised weights, which are not read" if codes else ""
        raise InputError(f"{source}: tensor {first} is missing{hint}")


def check_tensor(source: Path, name: str, tensor: torch.Tensor, shape: list[int]) -> None:
    """InputError for another shape, and for codes without the scales that decode them."""
    if tensor.dtype not in PLAIN:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise InputError(f"{source}: tensor {name} is {kind}, as of codes, and there are no scales that decode it")
    if list(tensor.shape) != shape:
        raise InputError(f"{source}: tensor {name} has shape {list(tensor.shape)}, the model has {shape}")


def converted(names: Names, group: Group, stored: Stored, source: Path) -> Tensors:
    try:
        return names.converted(group, stored.tensor, saving=False)
    except Exception as error:  # shapes that do not fit together, experts that are missing
        raise InputError(f"{source}: {group.target} cannot be made of its tensors: {first_line(error)}") from error


def store(engine: Engine, source: Path, number: int, parts: Iterator[torch.Tensor]) -> None:
    """Stores a tensor in the engine. InputError if a value is not finite."""
    first = 0
    for part in parts:
        try:
            engine.store_tensor(number, first, part.float())
        except ValueError as error:
            raise InputError(f"{source}: {error}") from error
        first += part.numel()


def measure(engine: Engine, number: int, parts: Iterator[torch.Tensor]) -> None:
    """Shows the engine all of a tensor before it is stored in pieces."""
    first = 0
    for part in parts:
        engine.measure_tensor(number, first, part.float())
        first += part.numel()


def measured_names(description: Description) -> set[str]:
    """The names of tensors that the engine measures before it packs them."""
    every = (tensor for block in description.blocks for tensor in block.tensors)
    return {tensor.name for tensor in every if tensor.form is Form.nf4_nested}


def saved_buffers(meta_model: MetaModel, names: Names) -> list[Unit]:
    types, values = meta_model.kept_types, meta_model.model.state_dict()
    return [held(name, values[name].to(types.get(name, values[name].dtype))) for name in sorted(names.buffers)]


def save_converted(
    meta_model: MetaModel, write: Callable[[str], None], directory: Path, max_shard: int, carry_from: Path | None
) -> None:
    """Saves the model as `save_pretrained` does. `write` puts the engine's tensors into a directory; they are converted
    from there.

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
        units += names.others(Stored(carry_from, meta_model.kept)) if carry_from is not None else []
        write_files(directory, "model", max_shard, units)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def add_files(directory: Path, max_shard: int, units: list[Unit]) -> None:
    """Beside the model that `directory` holds, further tensors in files of their own."""
    write_files(directory, OTHERS, max_shard, units)
    files = [path for base in ("model", OTHERS) for path in sorted(directory.glob(f"{base}*.safetensors"))]
    for index in directory.glob("*.index.json"):
        index.unlink()
    places: dict[str, str] = {}
    size = parameters = 0
    for number, path in enumerate(files, start=1):
        name, stored = f"model-{number:05d}-of-{len(files):05d}.safetensors", Stored(path)
        metas = {each: stored.meta(each) for each in stored.names()}
        places |= dict.fromkeys(metas, name)
        size += sum(meta.numel() * meta.element_size() for meta in metas.values())
        parameters += sum(meta.numel() for meta in metas.values())
        os.rename(path, directory / name)
        os.replace(sheet_of(path), sheet_of(directory / name))
    total = {"total_parameters": parameters, "total_size": size}
    content = {"metadata": total, "weight_map": dict(sorted(places.items()))}
    with open(new_file(directory / INDEX), "w", encoding="utf-8") as stream:
        stream.write(json.dumps(content, indent=2) + "\n")


def to_engine(meta_model: MetaModel, description: Description, checkpoint: Path, target: Path) -> None:
    """A checkpoint's tensors as the engine names them, in a directory of their own; buffers into the model."""
    names, stored = Names(meta_model), Stored(checkpoint)
    numbers = tensor_numbers(description)
    units = []
    for group in names.loading(stored.names()):
        if group.target in names.towers or group.target in names.aliases:
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
    """The engine's tensors of a group; buffers go into the model."""
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


def tensor_numbers(description: Description) -> dict[str, tuple[int, list[int]]]:
    tensors = [tensor for block in description.blocks for tensor in block.tensors]
    return {tensor.name: (number, tensor.shape) for number, tensor in enumerate(tensors)}


def base_numbers(meta_model: MetaModel, description: Description) -> dict[str, tuple[int, list[int]]]:
    """Numbers of the model's own tensors, adapters left out."""
    own = set(meta_model.adapters.names) if meta_model.adapters else set()
    return {name: numbers for name, numbers in tensor_numbers(description).items() if name not in own}


def load_weights(meta_model: MetaModel, description: Description, engine: Engine, source: Path) -> None:
    """From a checkpoint, by the engine itself where nothing is converted. InputError where the checkpoint lacks what
    is carried along, too."""
    ties.refuse_differing(meta_model, source)
    record_carried(meta_model, source)
    stored = stored_names(description, source, meta_model.model.base_model_prefix)
    absent = meta_model.adapters.absent(description, adapters=False) if meta_model.adapters is not None else {}
    absent |= dict.fromkeys(list_drawn(meta_model, source), "")
    stored |= absent
    keys, names = stored_keys(source), Names(meta_model)
    if keys and names.towers and (lost := names.missing(Stored(source))):
        raise InputError(f"{source}: tensor {lost} is missing; it is not trained, but every checkpoint is to hold it")
    if plain(meta_model, description) and set(filter(None, stored.values())) <= keys:
        engine.load_weights(str(source), stored)
    elif not keys:  # unreadable: the engine's reader says why
        engine.load_weights(str(source), stored)
    elif (names_in_file := names.stored(set(base_numbers(meta_model, description)) - set(absent), keys)) is not None:
        engine.load_weights(str(source), names_in_file | absent)
        load_buffers(meta_model, source)
    else:
        load(meta_model, description, engine, source)


def list_drawn(meta_model: MetaModel, source: Path) -> list[str]:
    """Tensors that the checkpoint lacks and a run draws: the head of labels of a model that has predicted tokens."""
    keys, names = stored_keys(source), [meta_model.names[id(p)] for p in meta_model.head.parameters()]
    return [name for name in names if name not in keys] if is_classifier(meta_model.config) and keys else []


def save_weights(
    meta_model: MetaModel, description: Description, engine: Engine, directory: Path, max_shard: int, source: Path
) -> None:
    """To a directory that exists. `source`: the checkpoint that the run began with, if there is one."""
    names, keys, own = describe_save(meta_model, description, source)
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
        others += names.others(Stored(source, meta_model.kept))
    differing = {name: to for name, to in own.items() if name != to}
    engine.save_weights(str(directory), max_shard, *([differing] if differing else []))
    if others:
        add_files(directory, max_shard, others)


def give_weights(
    meta_model: MetaModel, description: Description, engine: Engine, directory: Path, max_shard: int, source: Path
) -> None:
    """`save_weights` of a process that does not write: what it has goes to the one that does."""
    names, keys, own = describe_save(meta_model, description, source)
    if own is None or in_one_file(meta_model, names, keys, max_shard):
        engine.save_weights(str(directory), max_shard)
        return
    differing = {name: to for name, to in own.items() if name != to}
    engine.save_weights(str(directory), max_shard, *([differing] if differing else []))


def describe_save(
    meta_model: MetaModel, description: Description, source: Path
) -> tuple[Names, set[str], dict[str, str] | None]:
    """The input of a save: names, names in the checkpoint that the run began with, and the engine's tensor names in
    files. None if the tensors have another form in files."""
    names, keys = Names(meta_model), stored_keys(source)
    names.know(keys)  # a run that went on has not read it; older names are kept
    return names, keys, names.renamed(set(base_numbers(meta_model, description)))


def in_one_file(meta_model: MetaModel, names: Names, keys: set[str], max_shard: int) -> bool:
    """True if a save is small enough for one file, which also holds the tensors that the engine lacks."""
    if not names.buffers and not names.towers and not names.passed_over(keys):
        return False
    return sum(p.numel() * p.element_size() for p in meta_model.stored.parameters()) < max_shard


def load_state(
    meta_model: MetaModel, description: Description, engine: Engine, state: Path, checkpoint: Path, steps: int
) -> str:
    """Loads the state that `save_weights` and `Engine.save_state` wrote; see Engine.load_state."""
    keys = stored_keys(checkpoint)
    if not keys or (plain(meta_model, description) and set(tensor_numbers(description)) <= keys):
        return engine.load_state(str(state), str(checkpoint), steps)
    stored = Names(meta_model).stored(set(tensor_numbers(description)), keys)
    if stored is not None:
        load_buffers(meta_model, checkpoint)
        return engine.load_state(str(state), str(checkpoint), steps, stored)
    place = state if os.access(state, os.W_OK) else None  # a checkpoint may lie where nothing can be written
    with tempfile.TemporaryDirectory(prefix=WEIGHTS, dir=place) as temporary:
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


def plain(meta_model: MetaModel, description: Description) -> bool:
    """True if the engine's tensors are those of files, by their names, and files hold no others."""
    names = Names(meta_model)
    own = names.renamed(set(base_numbers(meta_model, description)))
    return own is not None and not names.buffers and all(name == to for name, to in own.items())


def converts(meta_model: MetaModel, description: Description, source: Path, max_shard: int) -> bool:
    """True if a save writes the engine's tensors twice. They have another form in files, or are so few that one file
    holds them and others."""
    names, keys, own = describe_save(meta_model, description, source)
    return own is None or in_one_file(meta_model, names, keys, max_shard)


def reads_base(meta_model: MetaModel, source: Path) -> bool:
    """True if a resumed run still reads weights in `source`: the base under adapters, or tensors that a save carries
    along."""
    names = Names(meta_model)
    if meta_model.adapters is not None or names.buffers or names.towers:
        return True
    return bool(names.passed_over(stored_keys(source)))


def count_carried_bytes(meta_model: MetaModel, source: Path) -> int:
    """The bytes of the untrained tensors in a save. `source`: the checkpoint that the run began with, if there is one.
    InputError for a tensor that cannot be copied."""
    towers = sum(parameter.numel() for parameter in meta_model.carried) * meta_model.kept.itemsize
    if not (extra := Names(meta_model).passed_over(stored_keys(source))):
        return towers
    stored = Stored(source, meta_model.kept)
    metas = [stored.meta(name) for name in extra]
    return towers + sum(meta.numel() * meta.element_size() for meta in metas)


def record_carried(meta_model: MetaModel, source: Path) -> None:
    """Records the names that saves carry along from the checkpoint, if its files are on this machine."""
    if keys := stored_keys(source):
        meta_model.extra = frozenset(Names(meta_model).carried(keys))


def require_carried(meta_model: MetaModel, source: Path) -> None:
    """InputError if a file with tensors that a save carries along is missing."""
    if lost := sorted(meta_model.extra - stored_keys(source)):
        raise InputError(
            f"{source}: tensor {lost[0]} is gone, which every save carries along from there; put the files back"
        )


def describe_carried(meta_model: MetaModel, source: Path) -> list[str]:
    """The notice of tensors that the model has no place for; empty without such tensors."""
    extra = sorted(Names(meta_model).passed_over(stored_keys(source)), key=natural_order)
    if not extra or meta_model.adapters is not None:  # files of adapters hold nothing of the base
        return []
    more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
    return [
        f"{extra[0]}{more} in {source}: transformers' model has no place for such tensors; they are not trained, and "
        "every save holds them as they are"
    ]


def checkpoint_names(meta_model: MetaModel, source: Path) -> dict[str, list[str]]:
    """For each parameter of a multimodal model, the names of the tensors in its checkpoint that it is made
    of; where it is not there yet, in one that the library writes."""
    names, keys = Names(meta_model), stored_keys(source)
    if keys:
        return {group.target: [name for name, _ in group.members] for group in names.loading(keys)}
    own = {name for name, _ in meta_model.stored.named_parameters()}
    targets: dict[str, list[str]] = {}
    for group in names.saving(own).values():
        for name, _ in group.members:
            targets.setdefault(name, []).append(group.target)
    return targets
