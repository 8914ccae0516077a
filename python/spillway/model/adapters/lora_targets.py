"""The targets of adapters: linear layers by name, all of them, or PEFT's default for a model type;
fused experts by name.

PEFT takes some names of linear layers for experts that transformers has fused into one parameter of three dimensions
(`gate_proj` of `qwen3_moe`). These names are left out or refused. `lora_target_parameters` names such a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from spillway.errors import InputError
from spillway.model.meta.building import find_layers
from spillway.model.meta.meta_model import pattern
from spillway.model.source.source import is_classifier

ALL = "all-linear"
SHOWN = 12  # names that a message lists


@dataclass(frozen=True)
class Targets:
    """The targets for PEFT, and the notice of the layers that they leave out."""

    modules: Any  # `target_modules` of LoraConfig
    notice: str = ""


@dataclass(frozen=True)
class Linears:
    """The linear layers inside a model's layers, by the last part of their names."""

    names: list[str]  # names of layers that can have adapters
    experts: list[str]  # names that PEFT takes for fused experts
    fused: list[str]  # parameters of other modules, without the layer's number

    def words(self) -> str:
        return f"its linear layers are {join_names(self.names)}" if self.names else "it has no linear layers of its own"


def check_parameters(model: Any, targets: list[str]) -> None:
    """InputError for a target that is no parameter with the matrices of several experts."""
    if not targets:
        return
    inside = {id(parameter) for layer in find_layers(model, "") for parameter in layer.parameters()}
    named = {name: parameter for name, parameter in model.named_parameters()}
    experts = [name for name, p in named.items() if id(p) in inside and p.dim() == 3]
    offer = f"its experts are {join_names(dict.fromkeys(map(name_in_layer, experts)))}" if experts else "it has none"
    for target in targets:
        matches = [name for name in named if ends_with(name, [target])]
        if not matches or not set(matches) <= set(experts):
            others = set(matches) - set(experts)
            words = f"finds {min(others)}, which is not one" if others else "names no parameter"
            raise InputError(
                f"lora_target_parameters: {target} {words} of {find_kind(model)} with the matrices of several experts; "
                f"{offer}"
            )


def ends_with(name: str, targets: Iterable[str]) -> bool:
    """True if a target names the parameter, as PEFT matches them."""
    return any(f".{name}".endswith(f".{target}") for target in targets)


def find_kind(model: Any) -> str:
    return str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))


def choose_targets(peft: Any, model: Any, targets: Any, parameters: list[str]) -> Targets:
    """The targets for `asked`: names, ALL, or None for PEFT's default, which is nothing beside `parameters`. InputError
    lists the model's names."""
    kind = find_kind(model)
    if targets is None:
        return Targets([]) if parameters else choose_defaults(peft, model, kind)
    if targets == ALL:
        return choose_all_linear(peft, model, kind, parameters)
    if refused := [name for name in targets if is_fused(peft, model, name.rpartition(".")[2])]:
        linears = find_linears(peft, model)
        raise InputError(
            f"lora_target_modules: in {kind} PEFT takes {join_names(refused)} for experts that are fused into one "
            f"parameter; name that one in lora_target_parameters, such as {join_names(linears.fused)}; "
            f"{linears.words()}"
        )
    modules = [name for name, _ in model.named_modules()]
    missing = [name for name in targets if not any(f".{each}".endswith(f".{name}") for each in modules)]
    words = f"lora_target_modules: {join_names(missing)} {'is' if len(missing) == 1 else 'are'} in no layer of {kind}"
    return Targets(targets, words if missing else "")


def choose_defaults(peft: Any, model: Any, kind: str) -> Targets:
    defaults = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(kind)
    if isinstance(defaults, list | tuple | set) and (names := [n for n in defaults if not is_fused(peft, model, n)]):
        return Targets(names if is_rewritten(peft, model) else None)
    if defaults is not None and not is_rewritten(peft, model):
        return Targets(None)
    linears = find_linears(peft, model)
    offer = f"; name some of them, or give {ALL}" if linears.names else ""
    raise InputError(
        f"lora_target_modules: none are given, and PEFT has no default for model type {kind!r}; "
        f"{linears.words()}{offer}"
    )


def choose_all_linear(peft: Any, model: Any, kind: str, parameters: list[str]) -> Targets:
    linears = find_linears(peft, model)
    if not linears.names:
        raise InputError(f"lora_target_modules: {ALL} finds nothing in {kind}: {linears.words()}")
    notice = describe_left_out(linears, parameters)
    needs_names = linears.experts or is_rewritten(peft, model) or is_classifier(getattr(model, "config", None))
    return Targets(linears.names if needs_names else ALL, notice)


def describe_left_out(linears: Linears, parameters: list[str]) -> str:
    """The notice of what `all-linear` does not train beside `parameters`; empty if both train everything."""
    parts = []
    if fused := [name for name in linears.fused if not ends_with(name, parameters)]:
        parts.append(f"{join_names(fused)} (experts and routers that are no linear layers)")
    if linears.experts:
        parts.append(f"{join_names(linears.experts)} (names that PEFT takes for fused experts)")
    if not parts:
        return ""
    return f"lora_target_modules: {ALL} trains {join_names(linears.names)}; it leaves out {' and '.join(parts)}"


def find_linears(peft: Any, model: Any) -> Linears:
    layers = {id(module) for layer in find_layers(model, "") for module in layer.modules()}
    names: dict[str, None] = {}  # names in the model's order
    experts: dict[str, None] = {}
    fused: dict[str, None] = {}
    for name, module in model.named_modules():
        if id(module) not in layers:
            continue
        leaf = name.rpartition(".")[2]
        if isinstance(module, nn.Linear | Conv1D):
            (experts if is_fused(peft, model, leaf) else names)[leaf] = None
        elif not isinstance(module, nn.Embedding):
            matrices = (each for each, p in module._parameters.items() if p is not None and p.dim() > 1)
            fused |= dict.fromkeys(name_in_layer(f"{name}.{each}") for each in matrices if is_expert(module, each))
    return Linears(list(names), list(experts), list(fused))


def is_expert(module: nn.Module, name: str) -> bool:
    """True if a parameter has the matrices of several experts or the table of a router."""
    parameter = module._parameters[name]
    return parameter is not None and (parameter.dim() == 3 or "router" in type(module).__name__.lower())


def name_in_layer(name: str) -> str:
    """A parameter's name within its layer."""
    return pattern(name).rpartition("*.")[2]


def is_rewritten(peft: Any, model: Any) -> bool:
    """True if PEFT rewrites the targets for a model of this type."""
    lora_config = peft.LoraConfig()
    convert_targets(lora_config, model)
    return lora_config.target_modules is not None


def is_fused(peft: Any, model: Any, name: str) -> bool:
    """True if PEFT takes the name of a linear layer for experts in one parameter."""
    lora_config = peft.LoraConfig(target_modules=[name])
    try:
        convert_targets(lora_config, model)
    except ValueError:  # one of two names that PEFT fuses together
        return True
    return bool(lora_config.target_parameters)


def convert_targets(lora_config: Any, model: Any) -> None:
    """Converts a configuration as PEFT does before it looks for modules."""
    try:
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    except ImportError:  # releases of PEFT without these names
        return
    convert_peft_config_for_transformers(lora_config, model=model, conversions=None)


def join_names(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more
