"""Adapters merged into their base, one linear layer at a time.

PEFT merges each layer itself, on the layer's own weight and adapter, so every merged value has the bits that
`merge_and_unload` gives it. Modules that the adapters' file holds whole (`modules_to_save`) replace those of the base.
All other tensors of the base go from file to file in pieces.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from spillway.errors import InputError, first_line
from spillway.model.adapters.lora import (
    ADAPTER,
    ADAPTER_CONFIG,
    NAME,
    PREFIX,
    insert_adapters,
    list_adapter_names,
    required,
)
from spillway.model.checkpoint.tensor_names import Group, Names
from spillway.model.meta.meta_model import bare_name
from spillway.model.meta.score_head import HEAD
from spillway.model.source.library import natural_order
from spillway.model.source.source import OF_ROWS, OF_TOKENS, is_classifier
from spillway.model.source.tensor_files import Stored, Unit, pieces

if TYPE_CHECKING:
    from spillway.model.meta.meta_model import MetaModel

# Ways to begin adapters that leave the base as it is. The others put a part of each weight into its adapter.
KEEP_BASE = (True, False, "gaussian", "orthogonal", "eva")
COPIES = ("modules_to_save", "original_module")  # in names of a table's other copies
INSTEAD = "merge it with PEFT's `merge_and_unload`"


@dataclass(frozen=True)
class AdaptedLayer:
    """PEFT's layer on meta, and the names that its parameters have in the file of adapters."""

    module: Any
    files: dict[str, str]  # name of a parameter in the module -> name in the file


@dataclass(frozen=True)
class Reader:
    """Tensors of the base's files in the types that the model has them in."""

    base: Stored
    types: dict[str, torch.dtype]  # by name in the files; those that the model has no place for keep their own

    def find_type(self, name: str) -> torch.dtype:
        own, wanted = self.base.meta(name).dtype, self.types.get(name)
        is_float = wanted is not None and own.is_floating_point and wanted.is_floating_point
        return wanted if is_float and wanted is not None else own

    def meta(self, name: str) -> torch.Tensor:
        return self.base.meta(name).to(self.find_type(name))

    def tensor(self, name: str) -> torch.Tensor:
        return self.base.tensor(name).to(self.find_type(name))


def load_adapter_config(directory: Path) -> Any:
    """PEFT's configuration of the adapters in a directory. InputError names what cannot be merged."""
    peft, path = required(), directory / ADAPTER_CONFIG
    for name in (ADAPTER_CONFIG, ADAPTER):
        if not (directory / name).is_file():
            raise InputError(f"merge: there is no {directory / name}; expects a directory of adapters as PEFT saves it")
    try:
        config = peft.PeftConfig.from_pretrained(str(directory))
    except Exception as error:  # PEFT's reader raises any error
        raise InputError(f"{path}: PEFT cannot read it: {first_line(error)}") from error
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind != "LORA":
        raise InputError(f"{path}: the adapters are of type {kind}, and only LORA is merged here; {INSTEAD}")
    if config.init_lora_weights not in KEEP_BASE:
        raise InputError(
            f"{path}: init_lora_weights is {config.init_lora_weights!r}, which changes the base before training; "
            f"{INSTEAD}"
        )
    config.init_lora_weights = False
    return config


def find_head(adapters: Path, config: Any) -> tuple[int, str]:
    """The labels of the head that the adapters' file holds whole (0: none), and the kind of its class."""
    values, name = Stored(adapters / ADAPTER), f"{PREFIX}{HEAD}.weight"
    if HEAD not in (config.modules_to_save or ()) or name not in values.names():
        return 0, OF_ROWS
    is_of_tokens = f"{PREFIX}{HEAD}.bias" in values.names()
    return values.meta(name).shape[0], OF_TOKENS if is_of_tokens else OF_ROWS


def find_vocabulary(meta_model: MetaModel, config: Any, adapters: Path) -> int:
    """The entries of the vocabulary's tables in the adapters' file, if the base was resized for them; else 0. Such
    tables become modules that the file holds whole, as PEFT saves them. InputError where the file lacks one of them."""
    values = Stored(adapters / ADAPTER)
    names = list_tables(meta_model)
    rows = {name: values.meta(f"{PREFIX}{name}").shape[0] for name in names if f"{PREFIX}{name}" in values.names()}
    own = meta_model.embedding.num_embeddings
    size = next((count for count in rows.values() if count != own), 0)
    if not size:
        return 0
    if missing := [name for name in names if rows.get(name) != size]:
        raise InputError(
            f"{adapters / ADAPTER}: the vocabulary has {size} entries there and {own} in the base, and {missing[0]} "
            "does not fit it; save both tables with the adapters (modules_to_save), or resize the base first"
        )
    modules = [name.removesuffix(".weight") for name in names]
    config.modules_to_save = list(dict.fromkeys([*(config.modules_to_save or ()), *modules]))
    return size


def list_tables(meta_model: MetaModel) -> list[str]:
    """The names of the embedding's table, and of the head's where it is another one with the vocabulary's rows."""
    tables = [meta_model.embedding.weight]
    if not meta_model.tied and not is_classifier(meta_model.config):
        tables.append(meta_model.head.weight)
    return [meta_model.names[id(table)] for table in tables]


def list_merged(meta_model: MetaModel, config: Any, adapters: Path, source: Path) -> list[Unit]:
    """The tensors of the checkpoint `source` under its own names, with `adapters` merged into them. InputError before
    any is made, where the adapters do not belong to this base."""
    meta_model.remember_original()
    names, base = Names(meta_model), Stored(source)
    types = {name: tensor.dtype for name, tensor in meta_model.stored.state_dict().items()}
    values, layers = Stored(adapters / ADAPTER), adapt(meta_model, config)
    left = check_adapters(adapters / ADAPTER, layers, values)
    whole = find_whole(adapters / ADAPTER, meta_model, config.modules_to_save or (), values, left)
    groups = names.loading(base.names())
    wholes = {group.target: group.members[0][0] for group in groups if group.transform is None}
    targets = {member: group.target for group in groups for member, _ in group.members}
    read = Reader(base, {name: types[target] for name, target in targets.items()})
    for name in (*layers, *whole):
        if name in names.aliases or name in names.aliases.values():
            raise InputError(f"{adapters}: {name} is shared with another layer of the base; {INSTEAD}")
    apart = {name: layer for name, layer in layers.items() if name not in wholes}
    joined = list_joined(names, groups, read, apart, values)
    written = {name for unit in joined for name, _ in unit.listed}
    merged = {wholes[name]: layer for name, layer in layers.items() if name in wholes}
    replaced = {wholes.get(name, name): (types[name], file) for name, file in whole.items()}
    if inside := sorted(name for name in whole if name not in wholes and name in targets.values()):
        raise InputError(f"{source}: {inside[0]} is made of several tensors there; {INSTEAD}")
    units = {unit.listed[0][0]: unit for unit in joined}
    for name, (dtype, file) in replaced.items():
        units[name] = Unit([(name, values.meta(file).to(dtype))], partial(copy_whole, values, file, dtype))
    for name in (targets.keys() | names.passed_over(base.names())) - written - replaced.keys():
        listed = [(name, read.meta(name))]
        if name in merged:
            units[name] = Unit(listed, partial(merge_tensor, read, name, merged[name], values))
        else:
            units[name] = Unit(listed, partial(copy_tensor, read, name))
    return [units[name] for name in sorted(units, key=natural_order)]


def list_joined(
    names: Names, groups: list[Group], read: Reader, layers: dict[str, AdaptedLayer], values: Stored
) -> list[Unit]:
    """The tensors of files that hold an adapted weight together with others, such as queries, keys and values in one.
    InputError for a weight that files have no tensor for."""
    units, left = [], dict(layers)
    for group in groups if layers else ():
        made = names.list_made(group, read.base) if group.transform is not None else []
        inside = {name: left.pop(name) for name in made if name in left}
        if not inside:
            continue
        metas = names.converted(group, read.meta, saving=False)
        back = list(names.saving(set(metas)).values())
        listed = [each for part in back for each in names.converted(part, metas.__getitem__, saving=True).items()]
        if {name for name, _ in listed} != {name for name, _ in group.members}:
            left |= inside
            break
        units.append(Unit(listed, partial(merge_group, names, group, back, read, inside, values)))
    if left:
        raise InputError(f"{read.base.place}: {min(left)} is made of several tensors there; {INSTEAD}")
    return units


def adapt(meta_model: MetaModel, config: Any) -> dict[str, AdaptedLayer]:
    """Puts adapters without values into a meta model. Returns them by the name of the weight they change."""
    model, config = meta_model.model, copy.deepcopy(config)
    config.modules_to_save = None  # they replace tensors of the base, and need no module here
    if is_classifier(model.config):
        config.task_type = None  # PEFT would wrap the head
    try:
        insert_adapters(model, config, low_cpu_mem_usage=True)
    except Exception as error:  # PEFT knows no such module, or a setting that needs weights
        raise InputError(f"the adapters do not fit the base: {first_line(error)}") from error
    from peft.tuners.tuners_utils import BaseTunerLayer

    named = [(name, module) for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]
    return {bare_name(f"{name}.{adapted_name(module)}"): describe_layer(name, module) for name, module in named}


def adapted_name(module: Any) -> str:
    """The name of the parameter that an adapter changes: PEFT's `ParamWrapper` says it."""
    return str(getattr(module, "parameter_name", "weight"))


def describe_layer(name: str, module: Any) -> AdaptedLayer:
    from peft.tuners.lora import Linear
    from peft.tuners.lora.layer import ParamWrapper

    is_known = type(module) in (Linear, ParamWrapper)
    if not is_known or (getattr(module, "lora_variant", None) and not module.use_dora[NAME]):
        kind = type(module.get_base_layer()).__name__
        raise InputError(f"adapters of {name}, a {kind}, are none of a plain linear layer; {INSTEAD}")
    own = list_adapter_names(module, NAME)
    files = {each: f"{PREFIX}{name}.{each.replace(f'.{NAME}', '')}" for each in own}
    return AdaptedLayer(module, {each: file.replace("_vector.weight", "_vector") for each, file in files.items()})


def check_adapters(path: Path, layers: dict[str, AdaptedLayer], values: Stored) -> set[str]:
    """The names in the file that belong to no adapter. InputError for a tensor that is missing or has another shape."""
    left = values.names()
    for layer in layers.values():
        for own, name in layer.files.items():
            if own.endswith(".bias"):
                raise InputError(f"{path}: {name} changes a bias, which is not merged here; {INSTEAD}")
            check_shape(path, values, name, layer.module.get_parameter(own), left)
            left.discard(name)
    return left


def check_shape(path: Path, values: Stored, name: str, parameter: torch.Tensor, there: Collection[str]) -> None:
    shape, stored_shape = list(parameter.shape), list(values.meta(name).shape) if name in there else None
    if stored_shape != shape:
        raise InputError(f"{path}: {name} has shape {stored_shape or 'none, it is missing'}; the base needs {shape}")


def find_whole(
    path: Path, meta_model: MetaModel, modules: Collection[str], values: Stored, left: set[str]
) -> dict[str, str]:
    """The parameters of modules that the file holds whole: each one's name in the model, and in the file. `left`: names
    in the file that belong to no adapter. InputError for one that is missing, has another shape, or has no place."""
    whole: dict[str, str] = {}
    for name, parameter in meta_model.stored.named_parameters(remove_duplicate=False):
        if is_inside(name, modules):
            whole[name] = f"{PREFIX}{name}"
            check_shape(path, values, whole[name], parameter, left)
    # A table that was trained whole and resized is there three times, and PEFT loads the one with the plain name.
    again = {name.replace(".weight", f".{copy}.weight") for name in whole.values() for copy in COPIES}
    if others := left - set(whole.values()) - again:
        raise InputError(
            f"{path}: {min(others)} belongs to no adapter of a linear layer of the base, and to no module of "
            f"modules_to_save; {INSTEAD}"
        )
    return whole


def is_inside(name: str, modules: Collection[str]) -> bool:
    """True if PEFT finds the module of a parameter, or one around it, by the end of its name."""
    parts = name.split(".")[:-1]
    return any(".".join(parts[:count]).endswith(module) for count in range(1, len(parts) + 1) for module in modules)


def copy_tensor(read: Reader, name: str) -> Iterator[Iterator[torch.Tensor]]:
    yield (part.to(read.find_type(name)) for part in read.base.pieces(name))


def copy_whole(values: Stored, file: str, dtype: torch.dtype) -> Iterator[Iterator[torch.Tensor]]:
    yield (part.to(dtype) for part in values.pieces(file))


def merge_tensor(read: Reader, name: str, layer: AdaptedLayer, values: Stored) -> Iterator[Iterator[torch.Tensor]]:
    yield pieces(merge_weight(name, read.tensor(name), layer, values))


def merge_group(
    names: Names, group: Group, back: list[Group], read: Reader, layers: dict[str, AdaptedLayer], values: Stored
) -> Iterator[Iterator[torch.Tensor]]:
    """The tensors of a group, through the form that the model has them in."""
    tensors = names.converted(group, read.tensor, saving=False)
    for name, layer in layers.items():
        tensors[name] = merge_weight(name, tensors[name].contiguous(), layer, values)
    for part in back:
        yield from map(pieces, names.converted(part, tensors.__getitem__, saving=True).values())


def merge_weight(name: str, weight: torch.Tensor, layer: AdaptedLayer, values: Stored) -> torch.Tensor:
    """The weight of one layer with its adapter. InputError if the sum is not finite."""
    with torch.no_grad():
        merged = merge_layer(layer, weight, values)
    if not torch.isfinite(merged).all():
        raise InputError(f"{name}: the merged weight is not finite in {str(merged.dtype).removeprefix('torch.')}")
    return merged


def merge_layer(layer: AdaptedLayer, weight: torch.Tensor, values: Stored) -> torch.Tensor:
    """PEFT's own merge of a layer, whose parameters have bytes for as long as that takes."""
    module, inner = layer.module, layer.module.get_base_layer()
    places: list[tuple[nn.Module, str, nn.Parameter]] = []

    def put(owner: nn.Module, own: str, value: torch.Tensor) -> None:
        meta = owner._parameters[own]
        assert meta is not None
        places.append((owner, own, meta))
        owner._parameters[own] = nn.Parameter(value.to(meta.dtype), requires_grad=False)

    try:
        put(inner, adapted_name(module), weight)
        for name, file in layer.files.items():
            owner, _, own = name.rpartition(".")
            put(module.get_submodule(owner), own, values.tensor(file))
        module.merge(adapter_names=[NAME])
        return inner._parameters[adapted_name(module)].detach()  # type: ignore[no-any-return]
    finally:
        for owner_module, own, meta in places:
            owner_module._parameters[own] = meta
        module.merged_adapters.clear()
        module._caches.clear()
